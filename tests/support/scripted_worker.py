"""Workers without processes: what an `EngineHost` sends is recorded, and a test says what they answer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipelines.protocol.messages import (
    AnyEvent,
    Asleep,
    CachedCheckpoint,
    CachedCheckpoints,
    Cancel,
    CheckpointState,
    DeviceChoice,
    FromWorker,
    JobEvent,
    Load,
    Ready,
    Sleep,
    Spec,
    Submit,
    ToWorker,
    UnloadExcept,
)

LOAD_S = 5.0  # that the worker says a checkpoint took


@dataclass
class ScriptedWorker:
    """Satisfies `server.backends.transport.Launcher`, and is its own Transport. It loads what it is told to at once,
    unless its path is in `failing`; while `loads` is cleared it waits before that."""

    bytes: int = 1000  # of every checkpoint
    budget_bytes: int = 10_000
    failing: set[str] = field(default_factory=set)  # names of checkpoints
    loads: asyncio.Event = field(default_factory=asyncio.Event)
    starts: asyncio.Event = field(default_factory=asyncio.Event)
    loaded: list[Spec] = field(default_factory=list)  # in this life
    retained: list[tuple[Spec, ...]] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)  # ids, as they came
    cancelled: list[str] = field(default_factory=list)
    pid: int | None = None
    owns_worker: bool = True
    asked: int = 0  # times that it was to be spawned
    lives: int = 0
    moved: int = 0  # times that its weights were moved to the host
    _inbox: asyncio.Queue[FromWorker | None] = field(default_factory=asyncio.Queue)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.loads.set()
        self.starts.set()

    async def open(self, device: DeviceChoice) -> "ScriptedWorker":
        self.asked += 1
        await self.starts.wait()
        self.loaded, self._inbox = [], asyncio.Queue()
        self.lives += 1
        self._inbox.put_nowait(Ready(f"a scripted {device}", is_gpu=False))
        return self

    async def receive(self) -> Sequence[FromWorker]:
        message = await self._inbox.get()
        return [] if message is None else [message]

    def send(self, messages: Sequence[ToWorker]) -> None:
        for message in messages:
            match message:
                case Submit(job):
                    self.jobs.append(job.id)
                case Cancel(job_id):
                    self.cancelled.append(job_id)
                case UnloadExcept(specs):
                    self.retained.append(specs)
                    self.loaded = [spec for spec in self.loaded if spec in specs]
                case Sleep():
                    self.moved += 1
                    self._inbox.put_nowait(Asleep())
                case Load(specs):
                    self._tasks.add(asyncio.create_task(self._load(specs)))

    def event(self, job_id: str, *events: AnyEvent) -> None:
        for event in events:
            self._inbox.put_nowait(JobEvent(job_id, event))

    def kill(self) -> None:
        """It dies. The next life begins when `starts` is set."""
        self._inbox.put_nowait(None)

    async def end_reason(self) -> str:
        return "a test wanted it"

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _load(self, specs: Sequence[Spec]) -> None:
        for spec in specs:
            await self.loads.wait()
            if spec.name in self.failing:
                self._inbox.put_nowait(CheckpointState(spec, "failed", f"{spec.name} does not load"))
                continue
            self.loaded.append(spec)
            self.report_cached()
            self._inbox.put_nowait(CheckpointState(spec, "loaded", "", load_s=LOAD_S))

    def report_cached(self) -> None:
        cached = tuple(CachedCheckpoint(each, self.bytes, True) for each in self.loaded)  # type: ignore[arg-type]
        self._inbox.put_nowait(CachedCheckpoints(cached, self.bytes * len(cached), self.budget_bytes))
