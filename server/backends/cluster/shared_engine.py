"""One worker that several servers use at once.

Each server has a link: it sends messages and gets those that concern it. A job belongs to the link that submitted it; a
link that ends, or has been silent for too long, loses its jobs, and the worker drops them. All links together have one
bounded queue. A checkpoint stays while any link names it. When the worker dies, all links end; the first that is made
after that starts another worker.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from pipelines.protocol.images import Failed
from pipelines.protocol.messages import (
    CachedCheckpoints,
    Cancel,
    CheckpointState,
    DeviceChoice,
    FromWorker,
    Job,
    JobEvent,
    Load,
    Ping,
    Pong,
    Ready,
    Sharing,
    Spec,
    Submit,
    ToWorker,
    UnloadExcept,
)
from server.backends.job_events import TERMINAL_EVENTS
from server.backends.transport import Launcher, Transport
from server.catalog.specs import spec_labels

log = structlog.stdlib.get_logger("darkroom.shared_engine")

LINK_SILENCE_S = 15.0  # after which a server is taken for gone; it says something every few seconds
POLL_EVERY_S = 0.5
QUEUE_RETRY_S = 5.0  # when to try a full queue again

LinkMessages = list[FromWorker] | str  # messages, or last of all why the link has ended


@dataclass(slots=True)
class _Link:
    """The link of one server. `specs` are the checkpoints that its catalog names or that it has asked for."""

    alive_at: float
    outbox: list[FromWorker] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    specs: set[Spec] = field(default_factory=set)
    sharing: Sharing | None = None  # as it was told last
    ended: str | None = None

    def send(self, *messages: FromWorker) -> None:
        self.outbox += messages
        self.changed.set()

    def end(self, reason: str) -> None:
        self.ended = self.ended or reason
        self.changed.set()


@dataclass(slots=True)
class _LinkedJob:
    """A job of a link. `cancelled` before the worker has acknowledged it: it is told to cancel when it does."""

    link: str
    acknowledged: bool = False
    cancelled: bool = False


class SharedEngine:
    """A worker and its links. All calls are made on one event loop. `max_jobs` is of all links together."""

    def __init__(self, launcher: Launcher, device: DeviceChoice, max_jobs: int) -> None:
        self._launcher = launcher
        self._device: DeviceChoice = device
        self._max_jobs = max_jobs
        self._starting = asyncio.Lock()
        self._transport: Transport | None = None
        self._life: asyncio.Task[None] | None = None  # of the worker
        self._links: dict[str, _Link] = {}
        self._jobs: dict[str, _LinkedJob] = {}
        self._states: dict[Spec, CheckpointState] = {}
        self._loading: set[Spec] = set()
        self._ready: Ready | None = None
        self._cached_checkpoints: CachedCheckpoints | None = None
        self._ping_sent = False
        self._ended = asyncio.Event()  # a job has
        self.leaving = False
        self.starts = 0  # of workers
        self.given_up = 0  # links that were silent

    @property
    def jobs(self) -> int:
        """Return how many jobs wait or run, of all links."""
        return len(self._jobs)

    @property
    def links(self) -> int:
        """Return how many servers have a link."""
        return len(self._links)

    @property
    def loaded(self) -> list[str]:
        """Return the names of the checkpoints that are loaded, with their catalog files where another set of options
        failed."""
        states = {spec: state.state for spec, state in self._states.items()}
        return sorted({label for spec, label in spec_labels(states).items() if states[spec] == "loaded"})

    @property
    def pid(self) -> int | None:
        """Return the worker's process id, None without a worker."""
        return self._transport.pid if self._transport is not None else None

    @property
    def device(self) -> str | None:
        """Describe the device for people; None until the worker is ready."""
        return self._ready.device if self._ready is not None else None

    async def link(self, name: str) -> AsyncIterator[LinkMessages]:
        """Yield the messages for a server, all that have come up since the last item in one; the first item is empty.
        The stream ends with the reason. Raises OSError if no worker can be started."""
        link = _Link(time.monotonic())
        async with self._starting:
            if self._transport is None:
                await self._start_worker()
            self._links[name] = link
        if self._ready is not None:
            link.send(self._ready)
        if self._cached_checkpoints is not None:
            link.send(self._cached_checkpoints)
        self._send_sharing()
        try:
            yield []
            while True:
                await link.changed.wait()
                link.changed.clear()
                messages, link.outbox = link.outbox, []
                if messages:
                    yield messages
                elif link.ended is not None:
                    yield link.ended
                    return
        finally:
            self._unlink(name, link)

    def unlink(self, name: str) -> None:
        """End the link of a server that leaves. Its jobs are dropped."""
        if (link := self._links.get(name)) is not None:
            link.end("the server has left")
            self._unlink(name, link)

    def send(self, name: str, messages: Sequence[ToWorker]) -> bool:
        """Take a server's messages; an empty list only shows that the server is alive. Returns False if it has no link
        (any more)."""
        link = self._links.get(name)
        if link is None:
            return False
        link.alive_at = time.monotonic()
        for message in messages:
            match message:
                case Submit(job):
                    self._submit(name, link, job)
                case Cancel(job_id):
                    if (owned := self._jobs.get(job_id)) is not None and owned.link == name:
                        self._cancel(job_id, owned)
                case Ping():
                    if not self._ping_sent:  # each link gets the answer
                        self._ping_sent = True
                        self._send(message)
                case Load(specs):
                    self._load(link, specs)
                case UnloadExcept(specs):
                    link.specs = set(specs)
                    self._unload_except()
        return True

    def kill(self, name: str) -> None:
        """Kill the worker, which a server finds to be stuck. Ignored unless that server has a link to this very
        worker."""
        if name in self._links and self._transport is not None:
            self._transport.kill()

    async def leave(self) -> None:
        """Take no more jobs, and wait until the present ones have ended."""
        self.leaving = True
        self._send_sharing()
        while self._jobs:
            self._ended.clear()
            await self._ended.wait()

    async def stop(self) -> None:
        """End the worker. Its jobs fail."""
        if self._life is not None:
            self._life.cancel()
            with suppress(asyncio.CancelledError):
                await self._life

    async def _start_worker(self) -> None:
        transport = self._transport = await self._launcher.open(self._device)
        self.starts += 1
        self._life = asyncio.create_task(self._live(transport), name="shared worker")

    async def _live(self, transport: Transport) -> None:
        watch = asyncio.create_task(self._watch_links())
        reason = "the engine was stopped"
        try:
            while messages := await transport.receive():
                for message in messages:
                    self._receive(message)
            reason = await transport.end_reason()
        finally:
            watch.cancel()
            log.warning("worker ended", reason=reason, jobs_lost=len(self._jobs), links=len(self._links))
            self._delete_worker(reason)
            await transport.close()

    def _delete_worker(self, reason: str) -> None:
        self._transport = self._ready = self._cached_checkpoints = None
        self._jobs.clear()
        self._ended.set()
        self._states.clear()
        self._loading.clear()
        self._ping_sent = False
        links, self._links = self._links, {}
        for link in links.values():
            link.end(reason)

    async def _watch_links(self) -> None:
        while True:
            await asyncio.sleep(POLL_EVERY_S)
            silent = time.monotonic() - LINK_SILENCE_S
            for name in [name for name, link in self._links.items() if link.alive_at < silent]:
                log.warning("a server is silent: its jobs are dropped", link=name)
                self.given_up += 1
                self.unlink(name)

    def _unlink(self, name: str, link: _Link) -> None:
        if self._links.get(name) is not link:
            return
        del self._links[name]
        for job_id, owned in list(self._jobs.items()):
            if owned.link == name:
                self._cancel(job_id, owned)
        self._send_sharing()

    def _submit(self, name: str, link: _Link, job: Job) -> None:
        if len(self._jobs) >= self._max_jobs or self.leaving:
            what = "is about to stop" if self.leaving else "has a full queue"
            message = f"The server is busy: the engine {what}; try again in {QUEUE_RETRY_S:.0f} s."
            link.send(JobEvent(job.id, Failed("queue_full", message, retry_after_s=QUEUE_RETRY_S, movable="anywhere")))
            return
        self._jobs[job.id] = _LinkedJob(name)
        link.specs.add(job.checkpoint)
        self._send(Submit(job))
        self._send_sharing()

    def _cancel(self, job_id: str, owned: _LinkedJob) -> None:
        owned.cancelled = True
        if owned.acknowledged:
            self._send(Cancel(job_id))

    def _load(self, link: _Link, specs: Sequence[Spec]) -> None:
        """Load checkpoints for a link, except those that are loaded, or being loaded, for another link."""
        link.specs |= set(specs)
        link.send(*(state for spec in specs if (state := self._states.get(spec)) and state.state == "loaded"))
        wanted = [spec for spec in specs if not self._is_loaded(spec) and spec not in self._loading]
        if wanted:
            self._loading |= set(wanted)
            self._send(Load(tuple(wanted)))

    def _is_loaded(self, spec: Spec) -> bool:
        return spec in self._states and self._states[spec].state == "loaded"

    def _unload_except(self) -> None:
        """Keep the checkpoints that any link names: those that one server drops, another may still name, or be about
        to."""
        named = set[Spec]().union(*(link.specs for link in self._links.values()))
        self._states = {spec: state for spec, state in self._states.items() if spec in named}
        self._send(UnloadExcept(tuple(named)))

    def _receive(self, message: FromWorker) -> None:
        match message:
            case JobEvent():
                self._deliver(message)
                return
            case CheckpointState():
                self._loading.discard(message.spec)
                self._states[message.spec] = message
                for link in self._links.values():
                    if message.spec in link.specs:
                        link.send(message)
                return
            case Pong():
                self._ping_sent = False
            case Ready():
                self._ready = message
            case CachedCheckpoints():
                self._cached_checkpoints = message
        for link in self._links.values():
            link.send(message)

    def _deliver(self, message: JobEvent) -> None:
        owned = self._jobs.get(message.job_id)
        if owned is None:
            return
        if not owned.acknowledged:
            owned.acknowledged = True
            if owned.cancelled:
                self._send(Cancel(message.job_id))
        if (link := self._links.get(owned.link)) is not None:
            link.send(message)
        if isinstance(message.event, TERMINAL_EVENTS):
            del self._jobs[message.job_id]
            self._ended.set()
            self._send_sharing()

    def _send_sharing(self) -> None:
        for name, link in self._links.items():
            sharing = Sharing(sum(owned.link != name for owned in self._jobs.values()), self.leaving)
            if link.sharing != sharing:
                link.sharing = sharing
                link.send(sharing)

    def _send(self, message: ToWorker) -> None:
        if self._transport is not None:
            self._transport.send([message])
