"""Another image server, on a real socket in the test's own event loop, which behaves as a test says."""

import asyncio
import base64
import io
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

CARD = {
    "supports": ["text", "image", "mask", "negative_prompt", "guidance", "steps"],
    "negative_prompt_above": 1,
    "reproducible": False,
    "max_references": 4,
    "long_prompts": ["refuse", "tell", "chunk"],
    "limits": {"prompt_tokens": 75},
}
TOKENS = {"prompt_tokens": {"used": 75, "of": 75, "cut": 14, "cut_at": 4}}


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    path: str
    headers: dict[str, str]
    fields: dict[str, Any]
    files: list[tuple[str, bytes]]


Answer = Callable[[Seen], Response]


def draw(seen: Seen, size: tuple[int, int] | None = None) -> bytes:
    """A PNG of the size that was asked for, in a colour by its seed."""
    width, height = size or map(int, seen.fields["size"].split("x"))
    file = io.BytesIO()
    Image.new("RGB", (width, height), (int(seen.fields["seed"]) % 256, 100, 0)).save(file, "PNG")
    return file.getvalue()


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def images(seen: Seen, size: tuple[int, int] | None = None) -> Response:
    """As SGLang-Diffusion and vLLM-Omni answer."""
    return JSONResponse({"created": 1, "data": [{"b64_json": as_base64(draw(seen, size)), "revised_prompt": "x"}]})


def stream(
    seen: Seen,
    *,
    cut_after: int | None = None,
    wait: asyncio.Event | None = None,
    size: tuple[int, int] | None = None,
) -> Response:
    """As another Darkroom streams, or the beginning of it. `wait` is waited for after the first byte."""
    image, n = as_base64(draw(seen, size)), int(seen.fields["n"])
    events = [
        {"type": "image_generation.partial_image", "image_index": i, "partial_image_index": number, "b64_json": image}
        for i in range(n)
        for number in range(int(seen.fields.get("partial_images", 0)))
    ]
    completed = {"type": "image_generation.completed", "b64_json": image, "parameters": TOKENS}
    events += [{**completed, "image_index": i} for i in range(n)]

    async def send() -> AsyncIterator[str]:
        yield ": keep-alive\n\n"
        if wait is not None:
            await wait.wait()
        for position, event in enumerate(events):
            if position == cut_after:
                raise ConnectionError("the test cuts it")
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"

    return StreamingResponse(send(), media_type="text/event-stream", headers={"x-darkroom-job": "img_there"})


@dataclass
class ImageServer:
    """Answers with `answers` in turn, then as `answer` does. Requests wait while `gate` is closed."""

    port: int
    seen: list[Seen] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    answer: Answer = images
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: list[str] = field(default_factory=list)  # ids of a Darkroom's calls
    left: int = 0  # clients that closed the connection before their answer
    card: dict[str, Any] = field(default_factory=lambda: dict(CARD))
    models_status: int = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def reset(self) -> None:
        self.seen.clear()
        self.answers.clear()
        self.cancelled.clear()
        self.answer, self.left = images, 0
        self.gate.set()

    async def draw(self, request: Request) -> Response:
        files: list[tuple[str, bytes]] = []
        if request.url.path.endswith("/edits"):
            form = await request.form()
            fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
            for name, value in form.multi_items():
                if isinstance(value, UploadFile):
                    files.append((name, await value.read()))
        else:
            fields = await request.json()
        seen = Seen(request.url.path, dict(request.headers), fields, files)
        self.seen.append(seen)
        answer = self.answers.pop(0) if self.answers else self.answer
        while not self.gate.is_set():
            if await request.is_disconnected():
                self.left += 1
                return Response(status_code=499)
            await asyncio.sleep(0.02)
        return answer(seen)

    async def cancel(self, request: Request) -> Response:
        self.cancelled.append(request.path_params["job"])
        return JSONResponse({})

    async def show(self, request: Request) -> Response:
        return JSONResponse(self.card, self.models_status)


@asynccontextmanager
async def image_server() -> AsyncIterator[ImageServer]:
    """Serves until the block ends."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = ImageServer(listener.getsockname()[1])
        server.gate.set()
        routes = [
            Route("/v1/images/generations", server.draw, methods=["POST"]),
            Route("/v1/images/edits", server.draw, methods=["POST"]),
            Route("/v1/images/jobs/{job}/cancel", server.cancel, methods=["POST"]),
            Route("/v1/models", server.show),
            Route("/v1/models/{name:path}", server.show),
        ]
        config = uvicorn.Config(Starlette(routes=routes), lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        running = uvicorn.Server(config)
        running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        task = asyncio.create_task(running.serve([listener]))
        try:
            yield server
        finally:
            server.gate.set()
            running.should_exit = True
            await asyncio.wait({task}, timeout=30)
