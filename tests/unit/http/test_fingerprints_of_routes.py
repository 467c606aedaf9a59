"""A later version knows one more optional field of every body: its fingerprints are what they were."""

import ast
import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import create_model
from sqlalchemy import select

from server import routes
from server.accounts.response_tables import ResponseRow
from server.accounts.tables import CallRow
from server.data_folders import REPOSITORY
from server.dialects.gemini import routes as gemini
from server.flows.chat import parse
from server.flows.chat_images import image_call
from server.flows.images.request import ImageRequest
from server.flows.responses import request as responses
from server.routes import images
from server.schemas.images import UpscaleBody, UpscaleForm
from tests.support.in_process import InProcess, in_process, png

SAID = [{"role": "user", "content": "a boat"}]
MODEL = "alpha-image-2-count"
TOOL = {"type": "image_generation", "model": MODEL}
LATER = [  # where each route's bodies are read, and how
    *((images, name) for name in ("GenerationBody", "EditForm")),
    (image_call, "ImageOptions"),
    (responses, "ResponseBody"),
    (parse, "ChatBody"),
    (gemini, "GenerateBody"),
]
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "image": ("/v1/images/generations", {"prompt": "a boat", "n": 1, "num_inference_steps": 3, "later": 1}),
    "edit": ("/v1/images/edits", {"prompt": "a boat", "n": "1", "size": "256x256"}),
    "response": ("/v1/responses", {"model": "starter-chat", "input": SAID, "tools": [TOOL], "store": True}),
    "chat": ("/v1/chat/completions", {"model": "starter-chat", "messages": SAID, "temperature": 1.0}),
    "image in a chat": ("/v1/chat/completions", {"model": MODEL, "messages": SAID, "seed": 7, "steps": 3}),
    "image by a chat": ("/v1/chat/completions", {"model": "starter-chat", "messages": SAID, "modalities": ["image"]}),
    "gemini": (f"/v1beta/models/{MODEL}:generateContent", {"contents": [{"parts": [{"text": "a boat"}]}]}),
}
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home")) as app:
        yield app


async def send(running: InProcess, call: str, idempotency_key: str) -> tuple[bool, str]:
    """Whether the answer was one of before, and the fingerprint that is recorded."""
    path, body = CALLS[call]
    sent = {"data": body, "files": {"image": png()}} if call == "edit" else {"json": body}
    answer = await running.client.post(path, headers={"Idempotency-Key": idempotency_key}, **sent)
    assert answer.status_code < 500, answer.text
    return "idempotency-replayed" in answer.headers, await asyncio.to_thread(_recorded, running, idempotency_key)


def _recorded(running: InProcess, idempotency_key: str) -> str:
    with running.services.stores.database.read() as session:
        found = [
            session.scalar(select(row.fingerprint).where(row.idempotency_key == idempotency_key))
            for row in (CallRow, ResponseRow)
        ]
    (recorded,) = filter(None, found)
    return recorded


def later(model: type[Any]) -> type[Any]:
    """The model with a field that only a later version knows, and that has a default."""
    made: type[Any] = create_model(model.__name__, __base__=model, later=(int, 3))
    return made


@pytest.mark.parametrize("call", CALLS)
async def test_one_more_optional_field_moves_no_fingerprint(
    running: InProcess, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, before = await send(running, call, f"{call} 1")
    for module, name in LATER:
        monkeypatch.setattr(module, name, later(getattr(module, name)))
    replayed, _ = await send(running, call, f"{call} 1")
    assert replayed
    again, after = await send(running, call, f"{call} 2")
    assert not again
    assert after == before if "later" not in CALLS[call][1] else after[:33] == before[:33]


async def test_one_more_field_of_an_image_call_moves_no_fingerprint() -> None:
    more = dataclasses.make_dataclass("Later", [("later", int, 3)], bases=(ImageRequest,), frozen=True, kw_only=True)
    one, other = (made(endpoint="chat.images", prompt="a boat") for made in (ImageRequest, more))
    assert image_call.request_fingerprint({}, one) == image_call.request_fingerprint({}, other)


@pytest.mark.parametrize("model", [UpscaleForm, UpscaleBody])
async def test_one_more_field_of_an_enlargement_moves_no_fingerprint(model: type[UpscaleForm]) -> None:
    sent, request = {"image": "data:,", "scale": 2}, ImageRequest(endpoint="images.upscale", prompt="")
    one, other = (images.AskedCall(sent, made(**sent), request).fingerprint() for made in (model, later(model)))
    assert one == other


async def test_no_fingerprint_is_of_a_body_with_its_defaults() -> None:
    """Every function that makes a fingerprint, or what one is made of, leaves them out."""
    dumps = 0
    for file in Path(routes.__file__).parents[1].rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            if "fingerprint" not in names and function.name != "meant_fields":
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "model_dump":
                    dumps += 1
                    place = f"{file.relative_to(REPOSITORY)}:{node.lineno}"
                    assert "exclude_defaults" in {keyword.arg for keyword in node.keywords}, place
    assert dumps >= 5
