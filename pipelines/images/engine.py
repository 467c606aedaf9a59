"""The engine inside a worker, in one page: jobs come in, rows wait, batches run, events go out.

`submit` splits a job into rows, one for each picture. `_dispatch` starts the best batch of waiting rows that may start
now. Each batch is a `Run` on a thread of its own; `Turns` says which run has the device. All state lives on the event
loop; runs report back by `call_soon_threadsafe`.
"""

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.catalog.estimate import Speeds
from pipelines.device.failures import Cancelled, OutOfTime, is_out_of_memory
from pipelines.device.memory import Budgets, fence, free_memory
from pipelines.device.openmp import let_helpers_go
from pipelines.images.batching import Batch, Bounds, Row, form_batches, held_bytes
from pipelines.images.checkpoint import Checkpoint
from pipelines.images.encode import encode
from pipelines.images.failures import failure_of
from pipelines.images.pipeline import Pixels, row_seed
from pipelines.images.residency import NoRoom, Residency, Resident
from pipelines.images.run import Reports, Run
from pipelines.images.scheduler import PATIENCE, Turns
from pipelines.images.warmup import warming_job
from pipelines.protocol.images import (
    CheckpointSpec,
    EncodedImage,
    Event,
    Failed,
    Finished,
    ImageJob,
    Preview,
    Progress,
    Queued,
    Started,
)
from pipelines.protocol.messages import Abilities

MOST_RUNS = 8  # at once on the device, all but one of them paused
MOST_OLD_RUNS = 5  # of them: the rest is for batches that are shorter than everything that runs
FAIR_WAIT_S = 5.0  # that a batch waits for room for its checkpoint before others stop starting
MOST_ROWS = {"cuda": 8, "cpu": 2}  # a CPU is busy with one picture; more at once only take memory


@dataclass(slots=True, eq=False)
class Task:
    """A job on its way through the engine."""

    job: ImageJob
    emit: Callable[[Event], None]
    rows: list[Row] = field(default_factory=list)
    files: dict[int, EncodedImage] = field(default_factory=dict)
    started: bool = False
    device_s: float = 0.0  # of its runs that have ended
    step: int = 0
    over: bool = False  # it has ended, or nobody wants it any more


class ImageEngine:
    """Build it and use it on one event loop."""

    def __init__(self, device: torch.device, budgets: Budgets | None = None) -> None:
        self.device = device
        self._loop = asyncio.get_running_loop()
        budgets = budgets or Budgets.of(device)
        self._held_bytes = budgets.held_bytes
        self._turns = Turns(fence(device), let_helpers_go)
        self._residency = Residency(device, budgets.device_bytes, budgets.host_bytes, self._turns.boundary)
        self._threads = ThreadPoolExecutor(MOST_RUNS, thread_name_prefix="run")
        self._encoders = ThreadPoolExecutor(2, thread_name_prefix="encode")
        self._bounds = Bounds(MOST_ROWS.get(device.type, 1))
        self._speeds = Speeds()
        self._tasks: dict[str, Task] = {}
        self._waiting: list[Row] = []
        self._runs: set[Run] = set()
        self._loads: dict[CheckpointSpec, asyncio.Task[None]] = {}
        self._no_room: set[CheckpointSpec] = set()  # until a run ends
        self._named: frozenset[CheckpointSpec] | None = None  # by the catalog; None until it has changed
        self._making_room = False  # for a load that has waited long: nothing else starts

    async def submit(self, job: ImageJob) -> AsyncIterator[Event]:
        """Take the job and say what becomes of it."""
        events: asyncio.Queue[Event] = asyncio.Queue()
        task = Task(job, events.put_nowait)
        yield Queued()
        task.rows = [Row(job, index, time.monotonic()) for index in range(job.n)]
        self._tasks[job.id] = task
        try:
            self._waiting += task.rows
            self._dispatch()
            while True:
                event = await events.get()
                yield event
                if isinstance(event, Finished | Failed):
                    return
        finally:
            self._abandon(task)  # for when the caller has left before the end
            del self._tasks[job.id]
            self._let_go()
            self._dispatch()  # it may have been in the way of others

    def cancel(self, job_id: str) -> None:
        """Stop the job within one step, or before it starts."""
        if (task := self._tasks.get(job_id)) and not task.over:
            self._fail(task, Cancelled())

    async def load(self, spec: CheckpointSpec) -> Checkpoint:
        """Have the weights ready before the first job. Raises CheckpointError."""
        return (await self._load(spec)).checkpoint

    async def _load(self, spec: CheckpointSpec) -> Resident:
        began = time.monotonic()
        try:
            while True:
                try:
                    return await self._residency.load(spec)
                except NoRoom:
                    self._making_room = time.monotonic() - began > FAIR_WAIT_S
                    await asyncio.sleep(0.1)
        finally:
            self._making_room = False
            self._dispatch()

    async def warm(self, spec: CheckpointSpec) -> Abilities:
        """Load and, with weights that are new here, draw one picture: kernels are built, the step is timed, latents
        show their colours. Raises CheckpointError.
        """
        if self._named is not None:
            self._named |= {spec}  # the next catalog names it
        resident = await self._load(spec)
        checkpoint = resident.seen_as(spec)
        checkpoint.pipeline("")
        abilities = checkpoint.abilities
        if spec.refined and not (abilities.img2img or abilities.inpaint):
            raise CheckpointError(
                f"{spec.path}: {checkpoint.kind.__name__} has neither an image-to-image nor an inpaint pipeline in "
                "diffusers, which its models above max_area_px need for their second pass; leave those models out"
            )
        if not resident.has_drawn:
            async for event in self.submit(warming_job(spec, checkpoint.multiple_px, self.device)):
                if isinstance(event, Failed):
                    raise CheckpointError(f"{spec.path} loads and does not draw: {event.detail or event.message}")
        return replace(abilities, unit_s=self._speeds.unit_s(spec))

    def keep(self, specs: Iterable[CheckpointSpec]) -> None:
        """The catalog names these now. Others leave as soon as no job needs them."""
        self._named = frozenset(specs)
        self._let_go()

    def _let_go(self) -> None:
        if self._named is not None:
            self._residency.keep(self._named, [task.job.checkpoint for task in self._tasks.values()])

    def _dispatch(self) -> None:
        """Start every waiting batch that may start; one that may not holds up nobody who may."""
        if self._making_room:
            return
        now = time.monotonic()
        for batch in form_batches(self._waiting, self._bounds, self._speeds, now):
            late = now - batch.since > FAIR_WAIT_S
            if not self._may_start(batch, now):
                if late and batch.exclusive:
                    return
                continue
            spec = batch.key.checkpoint
            resident = self._residency.find(spec)
            if resident is not None and not self._is_taken(resident):
                self._start(batch, resident)
            elif resident is None and spec not in self._loads and spec not in self._no_room:
                self._loads[spec] = asyncio.create_task(self._bring(spec))
            elif late and spec in self._no_room:
                return  # nothing new starts until what is in use has left

    def _may_start(self, batch: Batch, now: float) -> bool:
        """Whether there is a place for it, and it is shorter than all that runs or has waited long enough."""
        if not self._runs:
            return True
        if batch.exclusive or any(run.batch.exclusive for run in self._runs):
            return False
        held = sum(run.held_bytes for run in self._runs)
        if len(self._runs) >= MOST_RUNS or held + held_bytes(batch) > self._held_bytes:
            return False
        work_s = batch.units() * self._speeds.unit_s(batch.key.checkpoint)
        if work_s < min(run.turn.remaining_s for run in self._runs):
            return True
        patience_s = PATIENCE * work_s / batch.key.steps
        return len(self._runs) < MOST_OLD_RUNS and now - batch.since > patience_s

    def _is_taken(self, resident: Resident) -> bool:
        """Step caches and adapters are states of the weights: runs that use them come one after another."""
        runtime = resident.checkpoint.spec.runtime
        return resident.users > 0 and (runtime.cache is not None or runtime.lora_folder is not None)

    async def _bring(self, spec: CheckpointSpec) -> None:
        """Load a checkpoint that waiting rows need, and go on with them or fail them."""
        try:
            await self._residency.load(spec)
        except NoRoom:
            self._no_room.add(spec)
        except Exception as error:
            for task in [task for task in self._tasks.values() if task.job.checkpoint == spec]:
                self._fail(task, error)
        finally:
            del self._loads[spec]
        self._dispatch()

    def _start(self, batch: Batch, resident: Resident) -> None:
        self._waiting = [row for row in self._waiting if row not in batch.rows]
        self._residency.use(resident)
        estimate_s = batch.units() * self._speeds.unit_s(batch.key.checkpoint)
        reports = Reports(
            started=lambda run: self._post(self._on_started, run),
            stepped=lambda run: self._post(self._on_step, run),
            previewed=lambda *seen: self._post(self._preview, *seen),
        )
        run = Run(batch, resident, self._turns, estimate_s, reports)
        self._runs.add(run)
        drawing = self._loop.run_in_executor(self._threads, run.draw)
        drawing.add_done_callback(lambda done: self._on_end(run, done))

    def _on_started(self, run: Run) -> None:
        for task in self._tasks_of(run):
            if not task.started:
                task.started = True
                task.emit(Started())

    def _on_step(self, run: Run) -> None:
        for task in self._tasks_of(run):
            rows = sum(row.job is task.job for row in run.wanted)
            task.step += rows
            total = task.job.n * run.steps
            task.emit(Progress(min(task.step, total), total))
            if task.device_s + run.turn.device_s > task.job.time_limit_s:
                self._fail(task, OutOfTime())
        if self._waiting:
            self._dispatch()

    def _on_end(self, run: Run, done: asyncio.Future[list[Pixels]]) -> None:
        self._runs.discard(run)
        self._residency.done(run.resident)
        self._no_room.clear()
        error = done.exception()
        for task in self._tasks_of(run):
            task.device_s += run.turn.device_s
        if error is None:
            # A CPU's first picture is so small that all around its last step takes longer than that step.
            whole = run.resident.has_drawn or self.device.type != "cpu"
            took_s = run.turn.device_s if whole else run.forward_s * run.steps
            self._speeds.measured(run.batch.key.checkpoint, run.batch.units(), took_s)
            run.resident.has_drawn = True
            for row, pixels in zip(run.batch.rows, done.result(), strict=True):
                self._write(row, pixels)
        elif not isinstance(error, Cancelled):
            self._recover(run, error)
        self._let_go()
        self._dispatch()

    def _recover(self, run: Run, error: BaseException) -> None:
        """Fewer rows at once after running out of memory, one by one after anything else, before a job fails."""
        rows = [row for row in run.batch.rows if row in run.wanted]
        several = len(run.batch.rows) > 1
        if is_out_of_memory(error):
            traceback.clear_frames(error.__traceback__)  # they hold the tensors that did not fit
            free_memory(self.device)
            self._bounds.halve(run.batch.key, len(run.batch.rows))
            if not several and not run.batch.exclusive:
                self._residency.drop_unused()
        if several or (is_out_of_memory(error) and not run.batch.exclusive):
            for row in rows:
                row.alone = several and not is_out_of_memory(error)
                row.exclusive = not several
                self._tasks[row.job.id].step -= run.step
            self._waiting += rows
            return
        for task in self._tasks_of(run):
            self._fail(task, error)

    def _write(self, row: Row, pixels: Pixels) -> None:
        """Encode a picture; the last one of a job finishes it."""
        task = self._tasks.get(row.job.id)
        if task is None or task.over:
            return
        writing = self._loop.run_in_executor(
            self._encoders, encode, pixels, row.job.encoding, row.job.metadata, row_seed(row)
        )
        writing.add_done_callback(lambda done: self._on_written(task, row, done))

    def _on_written(self, task: Task, row: Row, done: asyncio.Future[EncodedImage]) -> None:
        if task.over:
            return
        if error := done.exception():
            self._fail(task, error)
            return
        task.files[row.index] = done.result()
        if len(task.files) == task.job.n:
            task.over = True
            files = tuple(task.files[index] for index in range(task.job.n))
            task.emit(Finished(files, task.device_s, self._speeds.unit_s(task.job.checkpoint)))

    def _preview(self, row: Row, number: int, pixels: Pixels) -> None:
        writing = self._loop.run_in_executor(self._encoders, encode, pixels, row.job.encoding, {}, row_seed(row))
        writing.add_done_callback(lambda done: self._on_preview(row, number, done))

    def _on_preview(self, row: Row, number: int, done: asyncio.Future[EncodedImage]) -> None:
        task = self._tasks.get(row.job.id)
        if task is None or task.over:
            return
        if error := done.exception():
            self._fail(task, error)
        else:
            task.emit(Preview(row.index, number, done.result()))

    def _tasks_of(self, run: Run) -> list[Task]:
        """The live jobs of a run, each once."""
        ids = dict.fromkeys(row.job.id for row in run.batch.rows)
        return [task for job_id in ids if (task := self._tasks.get(job_id)) and not task.over]

    def _fail(self, task: Task, error: BaseException) -> None:
        self._abandon(task)
        task.emit(failure_of(error, task.job))

    def _abandon(self, task: Task) -> None:
        """All or nothing: none of its rows counts any more, here or in a batch with others."""
        task.over = True
        self._waiting = [row for row in self._waiting if row.job is not task.job]
        for run in self._runs:
            run.wanted = {row for row in run.wanted if row.job is not task.job}
            if not run.wanted:
                run.turn.remaining_s = 0.0  # it gets its next turn at once, to end

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens any more
            self._loop.call_soon_threadsafe(call, *arguments)
