"""The whole app in the test's own process and event loop, with all of its parts but the workers: those are scripted.

Models of other servers are drawn by those.
"""

import asyncio
import io
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from PIL import Image

from pipelines.protocol.chat import Admitted, ChatFinished, ChatJob, ChatUsage, ChoiceFinished, TextDelta, ToolCallDelta
from pipelines.protocol.images import EncodedImage, Failed, Finished, ImageJob, Preview, Progress, Queued, Started
from pipelines.protocol.messages import AnyEvent, ToWorker
from server.accounts.keys import create_key
from server.app import create_app
from server.backends.engine_host import EngineHost
from server.backends.image_upstream.transport import UpstreamLauncher
from server.backends.job_events import JobEvents
from server.backends.worker_life import Up, Worker
from server.data_folders import REPOSITORY
from server.extras import DIALECTS
from server.http.dialect import Dialect
from server.services import Services
from server.settings import Settings
from tests.support.migrated import copy_migrated

PROGRESS = Progress(1, 2)


def png(width_px: int = 16, height_px: int = 16, colour: str = "teal") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width_px, height_px), colour).save(file, "PNG")
    return file.getvalue()


@dataclass
class Workers:
    """All workers of an app. Jobs wait before their end while `gate` is closed."""

    jobs: list[Any] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    queues: dict[str, asyncio.Queue[AnyEvent]] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    text: tuple[str, ...] = ("Hel", "lo")  # of every chat
    call: tuple[str, str] | None = None  # the tool that every chat calls instead, and its arguments
    script: Sequence[AnyEvent] = ()  # the deltas and ends of every chat, in place of the text and the call
    fails: bool = False  # every chat, before its first word
    image_failure: Failed | None = None  # the end of every image

    def submit(self, job: Any) -> JobEvents[Any]:
        self.jobs.append(job)
        queue = self.queues[job.id] = asyncio.Queue()
        task = asyncio.get_running_loop().create_task(self._draw(job) if isinstance(job, ImageJob) else self._talk(job))
        self.tasks.add(task)
        return JobEvents(queue)

    def cancel(self, job_id: str) -> None:
        if queue := self.queues.pop(job_id, None):
            queue.put_nowait(Failed("cancelled", "The job was cancelled; nothing was charged."))

    def send(self, job: Any, *events: AnyEvent) -> None:
        for event in events:
            if queue := self.queues.get(job.id):
                queue.put_nowait(event)

    async def _draw(self, job: ImageJob) -> None:
        image = EncodedImage(png(), "image/png", job.width_px, job.height_px, job.seed)
        previews = [Preview(0, number, image) for number in range(job.previews)]
        self.send(job, Queued(), Started(), PROGRESS, *previews)
        if self.image_failure is not None:
            self.send(job, self.image_failure)
        await self.gate.wait()
        self.send(job, Finished((image,) * job.n, run_s=0.1, unit_s=0.1))

    async def _talk(self, job: ChatJob) -> None:
        self.send(job, Admitted(3), Started())
        if self.fails:
            self.send(job, Failed("engine_failed", "The engine failed."))
        if self.script:
            self.send(job, *self.script, ChatFinished(ChatUsage(3, len(self.script)), run_s=0.1))
            return
        if self.call is None:
            self.send(job, *(TextDelta(0, piece) for piece in self.text))
        else:
            name, arguments = self.call
            self.send(job, ToolCallDelta(0, 0, "", "call_1", name), ToolCallDelta(0, 0, arguments))
        await self.gate.wait()
        self.send(
            job,
            ChoiceFinished(0, "stop" if self.call is None else "tool_calls"),
            ChatFinished(ChatUsage(3, len(self.text)), run_s=0.1),
        )


class NoTransport:
    """Satisfies `server.backends.transport.Transport` as far as it is used."""

    pid = None

    def send(self, messages: Sequence[ToWorker]) -> None:
        """Nobody hears them."""


def come_up(host: EngineHost[Any, Any], device: str = "cpu", **told: Any) -> None:
    """As if a worker had come up on this device and told this of itself."""
    host._state = Up(Worker(NoTransport(), 0.0, **told), device, wakes=False)  # type: ignore[arg-type]


@dataclass
class InProcess:
    """An app that runs."""

    app: FastAPI
    client: httpx.AsyncClient
    workers: Workers

    @property
    def services(self) -> Services:
        services: Services = self.app.state.services
        return services

    async def another_key(self) -> dict[str, str]:
        """The header of a second key."""
        database = self.services.stores.database
        return await asyncio.to_thread(_authorization, database)


def _authorization(database: Any) -> dict[str, str]:
    _, secret = create_key(database, "test", frozenset({"alpha-image-per-call", "beta-image-per-call", "chat"}))
    return {"Authorization": f"Bearer {secret}"}


@asynccontextmanager
async def in_process(
    home: Path,
    *,
    lora_folder: str | None = None,
    more_of_alpha: str = "",
    configs: Path = REPOSITORY / "model_configs",
    database: str | None = None,
    dialects: Sequence[Dialect] = DIALECTS,
    **settings: Any,
) -> AsyncIterator[InProcess]:
    """Run the app with the shipped catalog until the block ends. The gate is open. `lora_folder` is alpha's, below the
    home; `more_of_alpha` are further tables of its file."""
    if lora_folder is not None or more_of_alpha:
        configs = Path(shutil.copytree(configs, home / "model_configs"))
        alpha = configs / "alpha-image-2.toml"
        text = alpha.read_text() + more_of_alpha
        if lora_folder is not None:
            text = text.replace("[runtime]", f'[runtime]\nlora_folder = "{lora_folder}"')
        alpha.write_text(text)
    if database is None:
        copy_migrated(home / "darkroom.db")
    workers = Workers()
    workers.gate.set()
    with pytest.MonkeyPatch.context() as monkeypatch:
        _script(monkeypatch, workers)
        settings = {"answers_with_bytes": True, **settings}  # most tests look at the images of their answers
        known = Settings(home=home, weights=home, model_configs=configs, database=database, **settings)
        app = create_app(known, dialects=dialects)
        async with app.router.lifespan_context(app):
            headers = await asyncio.to_thread(_authorization, app.state.services.stores.database)
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
                yield InProcess(app, client, workers)
            for task in workers.tasks:
                task.cancel()


def _script(monkeypatch: pytest.MonkeyPatch, workers: Workers) -> None:
    """No process is spawned: jobs go to `workers`."""
    really = {name: getattr(EngineHost, name) for name in ("start", "submit", "cancel")}

    def is_upstream(host: EngineHost[Any, Any]) -> bool:
        return isinstance(host._launcher, UpstreamLauncher)

    async def start(host: EngineHost[Any, Any]) -> None:
        if is_upstream(host):
            await really["start"](host)
            return
        come_up(host)
        host._became_ready.set()

    def submit(host: EngineHost[Any, Any], job: Any) -> JobEvents[Any]:
        events: JobEvents[Any] = really["submit"](host, job) if is_upstream(host) else workers.submit(job)
        return events

    def cancel(host: EngineHost[Any, Any], job_id: str) -> None:
        if is_upstream(host):
            really["cancel"](host, job_id)
        else:
            workers.cancel(job_id)

    monkeypatch.setattr(EngineHost, "start", start)
    monkeypatch.setattr(EngineHost, "submit", submit)
    monkeypatch.setattr(EngineHost, "cancel", cancel)
