"""Another server in place of an image worker: the messages of an EngineHost become its requests.

There is no process. Where a worker tells that a checkpoint loaded or why not, this tells whether the server answers,
which is asked again and again; a job is sent in either case.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import quote

import httpx
import structlog

from pipelines.protocol.images import CheckpointSpec, Event, Failed, ImageJob, Queued, Started
from pipelines.protocol.messages import (
    Cancel,
    Capabilities,
    CheckpointState,
    DeviceChoice,
    FromWorker,
    JobEvent,
    Load,
    Ready,
    Submit,
    ToWorker,
    UnloadExcept,
)
from pipelines.protocol.upstream import ImageUpstream
from server.backends.image_upstream.answers import RETRY_S, UpstreamError
from server.backends.image_upstream.drawing import UpstreamDrawing
from server.backends.image_upstream.requests import capabilities_of, capabilities_of_card
from server.backends.upstream import UpstreamClient

log = structlog.stdlib.get_logger("darkroom.upstream")

CHECK_S = 30.0  # between two questions whether a server answers
CHECK_LIMIT_S = 5.0
CANCELLED = Failed("cancelled", "The job was cancelled; nothing was charged.")


class UpstreamLauncher:
    """Opens transports to one server. Satisfies `server.backends.transport.Launcher`."""

    owns_worker = False

    def __init__(self, base_url: str, client: UpstreamClient, drawing: UpstreamDrawing) -> None:
        self._base_url = base_url
        self._client = client
        self._drawing = drawing

    async def open(self, device: DeviceChoice) -> "UpstreamTransport":
        """Return a transport to the server. The device is the server's to choose, so `device` is not used."""
        return UpstreamTransport(self._base_url, self._client, self._drawing)


class UpstreamTransport:
    """Messages to and from one server. Satisfies `server.backends.transport.Transport`."""

    pid = None

    def __init__(self, base_url: str, client: UpstreamClient, drawing: UpstreamDrawing) -> None:
        self._client = client
        self._drawing = drawing
        self._inbox: asyncio.Queue[FromWorker | None] = asyncio.Queue()
        self._inbox.put_nowait(Ready(base_url, is_gpu=False))
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._states: dict[CheckpointSpec, CheckpointState | None] = {}  # None before the first answer
        self._poll = asyncio.Event()
        self._checker = asyncio.create_task(self._keep_probing(), name=f"upstream {base_url}")

    async def receive(self) -> Sequence[FromWorker]:
        """Wait for the next message; there is none after the end."""
        message = await self._inbox.get()
        return () if message is None else (message,)

    def send(self, messages: Sequence[ToWorker]) -> None:
        """Handle messages as a worker would. A job runs as a task of the caller's trace."""
        for message in messages:
            match message:
                case Submit(ImageJob() as job) if (upstream := job.checkpoint.upstream) is not None:
                    self._inbox.put_nowait(JobEvent(job.id, Queued()))
                    task = self._jobs[job.id] = asyncio.create_task(
                        self._run(job, upstream), name=f"upstream job {job.id}"
                    )
                    task.add_done_callback(lambda task, job=job: self._ended(job, task))  # type: ignore[misc]
                case Cancel(job_id) if job_id in self._jobs:
                    self._jobs[job_id].cancel()
                case Load(specs):
                    asked = [spec for spec in specs if isinstance(spec, CheckpointSpec)]
                    self._states |= {spec: None for spec in asked if not self._is_loaded(spec)}
                    self._poll.set()
                case UnloadExcept(specs):
                    self._states = {spec: state for spec, state in self._states.items() if spec in set(specs)}

    def kill(self) -> None:
        """End the transport: `receive` then returns nothing."""
        self._inbox.put_nowait(None)

    async def end_reason(self) -> str:
        """Return the reason of the end, for the log."""
        return "it was stopped"

    async def close(self) -> None:
        """Cancel all jobs, and wait until they have ended."""
        tasks = [self._checker, *self._jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._drawing.settle()
        self._inbox.put_nowait(None)

    async def _run(self, job: ImageJob, upstream: ImageUpstream) -> None:
        try:
            capabilities = await self._capabilities(job.checkpoint, upstream)
            self._notify(job, Started())
            last: Event = await self._drawing.draw(job, upstream, capabilities, lambda event: self._notify(job, event))
        except UpstreamError as error:
            last = error.failed
        except TimeoutError:
            last = Failed(
                "timed_out",
                f"The server behind model `{upstream.model}` took longer than the time limit of {job.time_limit_s:g} s "
                "(DARKROOM_JOB_TIME_LIMIT_S); nothing was charged.",
            )
        self._notify(job, last)

    def _ended(self, job: ImageJob, task: asyncio.Task[None]) -> None:
        """Send the last event of a job that was cancelled, or that failed with an unexpected error."""
        del self._jobs[job.id]
        if task.cancelled():
            self._notify(job, CANCELLED)
        elif (error := task.exception()) is not None:
            log.error("a job at an upstream failed", job=job.id, exc_info=error)
            self._notify(
                job, Failed("upstream_failed", "The image could not be drawn; nothing was charged.", str(error))
            )

    def _notify(self, job: ImageJob, event: Event) -> None:
        self._inbox.put_nowait(JobEvent(job.id, event))

    async def _capabilities(self, spec: CheckpointSpec, upstream: ImageUpstream) -> Capabilities:
        """Return the model's capabilities, asked of a server that has not told them yet. Raises UpstreamError."""
        state = self._states.get(spec)
        if state is None or state.capabilities is None:
            state = await self._check(spec, upstream)
        if state.capabilities is None:
            message = f"The server behind model `{upstream.model}` is not ready: {state.detail}."
            raise UpstreamError(Failed("upstream_busy", message, upstream.base_url, retry_after_s=RETRY_S))
        return state.capabilities

    def _is_loaded(self, spec: CheckpointSpec) -> bool:
        state = self._states.get(spec)
        return state is not None and state.state == "loaded"

    async def _keep_probing(self) -> None:
        while True:
            self._poll.clear()
            await asyncio.gather(*(self._update(spec) for spec in list(self._states)))
            with suppress(TimeoutError):  # then it is time to ask again
                async with asyncio.timeout(CHECK_S):
                    await self._poll.wait()

    async def _update(self, spec: CheckpointSpec) -> None:
        if spec.upstream is None:
            return
        state = await self._check(spec, spec.upstream)
        if spec in self._states and self._states[spec] != state:
            self._states[spec] = state
            self._inbox.put_nowait(state)

    async def _check(self, spec: CheckpointSpec, upstream: ImageUpstream) -> CheckpointState:
        """Return whether the server answers; another Darkroom also tells its model's capabilities."""
        capabilities = capabilities_of(upstream, spec.max_references) if upstream.api != "darkroom" else None
        path = f"/models/{quote(upstream.model)}" if upstream.api == "darkroom" else "/models"
        headers = self._client.headers(upstream)
        try:
            response = await self._client.http.get(upstream.base_url + path, headers=headers, timeout=CHECK_LIMIT_S)
            if response.status_code in {401, 403}:
                return CheckpointState(spec, "failed", "it refuses this server's key", capabilities)
            if upstream.api == "darkroom":
                return _state_of_card(spec, response)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return CheckpointState(spec, "failed", f"it does not answer ({type(error).__name__})", capabilities)
        if response.is_server_error:
            return CheckpointState(spec, "failed", f"it answers with status {response.status_code}", capabilities)
        return CheckpointState(spec, "loaded", f"at {upstream.base_url}", capabilities)


def _state_of_card(spec: CheckpointSpec, response: httpx.Response) -> CheckpointState:
    if response.status_code != httpx.codes.OK:
        return CheckpointState(spec, "failed", f"it answers with status {response.status_code} for its model")
    try:
        capabilities = capabilities_of_card(response.json())
    except (ValueError, KeyError, TypeError):
        return CheckpointState(spec, "failed", "its list of models is not that of an image model of a Darkroom")
    if not capabilities.names:
        return CheckpointState(spec, "failed", "its checkpoint has not loaded")
    return CheckpointState(spec, "loaded", f"at {response.url}", capabilities)
