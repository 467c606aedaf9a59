"""The image engine: jobs come in, their images run, events go out.

`submit` splits a job into rows, one for each image. `_dispatch` starts the waiting rows that may start now. Each is a
`Run` on a thread of its own; the `DeviceScheduler` decides which run has the device, and runs that wait for a forward
pass of one shape share it. All state lives on the event loop; runs report back with `call_soon_threadsafe`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipelines.checkpoints.errors import CheckpointError, MemoryTaken
from pipelines.checkpoints.work.estimate import Speeds, WeightsKey, weights_key
from pipelines.device.attention import attention_notes
from pipelines.device.failures import Cancelled, OutOfTime, clear_frames, is_out_of_memory
from pipelines.device.memory import Budgets
from pipelines.device.openmp import release_openmp_threads, run_and_release
from pipelines.device.timing import CudaTimeline
from pipelines.images.denoising.merging import Sharing
from pipelines.images.denoising.noise_schedulers import try_config
from pipelines.images.denoising.step_observer import Pixels
from pipelines.images.drawing.run import Run, RunCallbacks
from pipelines.images.failures import to_failed_event, to_load_failed_event
from pipelines.images.job_files import JobFiles
from pipelines.images.loading.adapters import ModifiedWeights
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.checkpoint_cache import CheckpointCache, DeviceFull, InsufficientMemory, LoadedCheckpoint
from pipelines.images.parallel.group import Group
from pipelines.images.scheduling.admission import MAX_RUNS, Admission
from pipelines.images.scheduling.batching import CHECK_PREFIX, LAYERS, EngineJob, Row, start_order
from pipelines.images.scheduling.row_limits import RowLimits
from pipelines.images.scheduling.scheduler import DeviceScheduler, Preempted
from pipelines.images.tasks import check_conditioning
from pipelines.images.warmup.check_records import CheckRecords
from pipelines.images.warmup.warmup import Serving, Warmup
from pipelines.protocol.images import (
    CheckpointSpec,
    Event,
    Failed,
    Finished,
    ImageJob,
    Progress,
    Queued,
    Started,
)
from pipelines.protocol.messages import CachedCheckpoints, Capabilities

ToEvent = Callable[[BaseException, ImageJob], Failed]
FAIR_WAIT_S = 5.0  # that an image waits for memory for its checkpoint before no other starts


class ImageEngine:
    """Satisfies `pipelines.protocol.engine.Engine`. Create it and use it on one event loop."""

    def __init__(
        self,
        device: torch.device,
        budgets: Budgets | None = None,
        on_cached_checkpoints: Callable[[CachedCheckpoints], None] = lambda _: None,
        checks: Path | None = None,
        group: Group | None = None,
        on_serving: Callable[[CheckpointSpec, Capabilities, float], None] = lambda *_: None,
    ) -> None:
        """Start the engine. `checks` is the folder where warmup's findings are kept. `group` has the further devices
        that a checkpoint may use, by default none. `on_serving` is called with a checkpoint that draws for callers
        while `prepare` goes on trying it, the capabilities as far as they are known, and how long that has taken."""
        self.device = device
        self._loop = asyncio.get_running_loop()
        budgets = budgets or Budgets.of(device)
        self._scheduler = DeviceScheduler(CudaTimeline() if device.type == "cuda" else None, release_openmp_threads)
        limits = RowLimits(MAX_RUNS)
        sharing = Sharing(self._scheduler, limits)
        self._cache = CheckpointCache(device, budgets, sharing, on_cached_checkpoints, group)
        self._on_serving = on_serving
        self._run_threads = ThreadPoolExecutor(MAX_RUNS, thread_name_prefix="run")
        self._speeds = Speeds()
        records = CheckRecords(checks) if checks is not None else None
        self._warmup = Warmup(device, self.submit, self._cache.find, self._speeds, limits, records)
        self._jobs: dict[str, EngineJob] = {}
        self._files = JobFiles(self._jobs, self._speeds, self._fail)
        self._waiting: list[Row] = []
        self._held: list[EngineJob] = []  # until what they need was tried
        self._runs: set[Run] = set()
        self._drawing: set[Run] = set()  # those that still need the device
        self._one_by_one: set[WeightsKey] = set()  # two of their images at once come out wrong
        self._unshared: set[WeightsKey] = set()  # two of their images at once were not tried yet
        alone = self._one_by_one, self._unshared
        self._admission = Admission(self._runs, self._drawing, alone, limits, budgets.held_bytes)
        self._loads: dict[CheckpointSpec, asyncio.Task[None]] = {}
        self._blocked_loads: set[CheckpointSpec] = set()  # no memory until a run ends
        self._unfit: dict[CheckpointSpec, CheckpointError] = {}  # they load, and do not draw as they should
        self._ended_runs = 0
        self._catalog_specs: frozenset[CheckpointSpec] | None = None  # None until `unload_except` is called
        self._freeing: set[asyncio.Task[None]] = set()
        self._paused_for_load = False  # a load has waited long for memory: no image starts

    async def submit(self, job: ImageJob) -> AsyncGenerator[Event, None]:
        """Queue the job and yield its events, up to Finished or Failed."""
        events: asyncio.Queue[Event] = asyncio.Queue()
        active = EngineJob(job, events.put_nowait)
        yield Queued()
        if unfit := self._unfit.get(job.checkpoint):
            yield to_load_failed_event(unfit, job)
            return
        self._jobs[job.id] = active
        try:
            self._admit(active)
            self._dispatch()
            while True:
                event = await events.get()
                yield event
                if isinstance(event, Finished | Failed):
                    return
        finally:
            self._drop(active)  # the caller may have left before the last event
            del self._jobs[job.id]
            self._evict_unneeded()
            self._dispatch()  # it may have blocked others

    def _admit(self, active: EngineJob) -> None:
        """Let a job's images wait for the device; but hold a job that needs what is still to be tried of its
        checkpoint, and fail one that needs what was tried in vain."""
        job = active.job
        if not job.id.startswith(CHECK_PREFIX):
            if self._warmup.is_untried(job):
                self._held.append(active)
                return
            if (why := self._warmup.why_refused(job)) is not None:
                self._fail(active, why)
                return
        drawn: dict[int, Any] = {}
        for index in range(job.n):
            self._wait(Row(job, index, self._scheduler.clock(), drawn=drawn))

    def cancel(self, job_id: str) -> None:
        """Stop the job within one step, or before it starts."""
        if (active := self._jobs.get(job_id)) and not active.done:
            self._fail(active, Cancelled())

    async def load(self, spec: CheckpointSpec) -> Checkpoint:
        """Load the weights before the first job. Raises CheckpointError."""
        return (await self._load(spec)).checkpoint

    async def _load(self, spec: CheckpointSpec) -> LoadedCheckpoint:
        began = time.monotonic()
        try:
            while True:
                try:
                    return await self._cache.load(spec)
                except InsufficientMemory as error:
                    full, ended_before = isinstance(error, DeviceFull), self._ended_runs
                    while True:
                        self._paused_for_load = time.monotonic() - began > FAIR_WAIT_S
                        await asyncio.sleep(0.1)
                        if not full or not self._runs or self._ended_runs > ended_before:
                            break  # each try reads the weights
        finally:
            self._paused_for_load = False
            self._dispatch()

    async def prepare(self, spec: CheckpointSpec) -> Capabilities:
        """Load a checkpoint and draw with it: this builds kernels, times the steps, fits the preview map, and finds
        which of its classes' capabilities work (pipelines.images.warmup.warmup). It may serve before this returns.
        Raises CheckpointError; jobs of one that has loaded then fail, until it is prepared again. Raises NotServed if
        it has served, and the catalog has dropped it since."""
        self._unfit.pop(spec, None)
        if self._catalog_specs is not None:
            self._catalog_specs |= {spec}  # the next catalog will name it
        try:
            return await self._prepare(spec)
        except MemoryTaken:  # it is tried again, and calls may be drawn with it before
            raise
        except CheckpointError:  # nothing is drawn with it: others may have its memory
            if self._catalog_specs is not None:
                self._catalog_specs -= {spec}
            self._evict_unneeded()
            raise

    async def _prepare(self, spec: CheckpointSpec) -> Capabilities:
        began = time.monotonic()
        files = await self._warmup.list_files(spec)
        loaded = await self._load(spec)
        checkpoint = loaded.checkpoint
        found = checkpoint.capabilities

        def begins(capabilities: Capabilities) -> None:
            nonlocal found
            found = capabilities
            self._limit_sharing(spec)
            self._on_serving(spec, self._with_notes(checkpoint, found), time.monotonic() - began)

        def goes_on() -> None:
            self._limit_sharing(spec)
            self._release_held()

        def is_wanted() -> bool:
            served = self._catalog_specs is None or spec in self._catalog_specs
            return served or any(active.job.checkpoint == spec for active in self._held)

        try:
            if not checkpoint.is_upscaler:
                await asyncio.to_thread(run_and_release, checkpoint.pipeline, None, spec.sampling)
                await asyncio.to_thread(try_config, checkpoint.components["scheduler"], spec.sampling)
                check_conditioning(spec, checkpoint.pipeline_class, checkpoint.task_classes)
            found = await self._warmup.run(spec, loaded, files, Serving(begins, goes_on, is_wanted))
        except CheckpointError as error:
            self._unfit[spec] = error
            raise
        finally:
            self._limit_sharing(spec)
            if not found.at_once:
                self._one_by_one.add(weights_key(spec))
            self._release_held()
        return replace(self._with_notes(checkpoint, found), unit_s=self._speeds.unit_s(spec))

    def _with_notes(self, checkpoint: Checkpoint, found: Capabilities) -> Capabilities:
        partial = (f"the adapter {fit.name}: {fit}" for fit in found.adapter_fits if not fit.is_whole)
        return replace(found, notes=(*checkpoint.notes, *partial, *attention_notes()))

    def _limit_sharing(self, spec: CheckpointSpec) -> None:
        """Draw the images of a checkpoint one after another until it was tried whether they may come at once."""
        if self._warmup.may_share(spec):
            self._unshared.discard(weights_key(spec))
        else:
            self._unshared.add(weights_key(spec))

    def _release_held(self) -> None:
        """Admit the jobs for which enough was tried."""
        held, self._held = self._held, []
        for active in held:
            if (unfit := self._unfit.get(active.job.checkpoint)) is not None:
                self._fail(active, unfit, to_load_failed_event)
            else:
                self._admit(active)
        self._dispatch()

    def unload_except(self, specs: Iterable[CheckpointSpec]) -> None:
        """Evict all other checkpoints than these, which the catalog names, once no job needs them."""
        self._catalog_specs = frozenset(specs)
        retained = {weights_key(spec) for spec in self._catalog_specs}
        self._warmup.unload_except(retained)
        self._one_by_one &= retained
        self._evict_unneeded()

    async def sleep(self) -> None:
        """Move all weights that no run uses to the host's memory, as far as there is room, and forget the others."""
        await self._cache.free_memory()

    def close(self) -> None:
        """Free all checkpoints, and end the threads. For an engine without jobs, in a process that goes on; it takes
        none afterwards."""
        self.unload_except(())
        self._cache.close()
        self._run_threads.shutdown()
        self._files.close()

    def _evict_unneeded(self) -> None:
        if self._catalog_specs is not None:
            self._cache.unload_except(self._catalog_specs, [active.job.checkpoint for active in self._jobs.values()])

    def _dispatch(self) -> None:
        """Start every waiting image that may start. One that may not start does not block those after it."""
        self._hasten_trials()
        self._admission.expect(self._waiting, self._cache.find)
        while not self._paused_for_load and self._dispatch_one():
            pass

    def _hasten_trials(self) -> None:
        """Let what is tried of checkpoints for which callers wait take turns as callers' images do: elsewhere it comes
        after all of those."""
        late = [row for row in (*self._waiting, *(run.row for run in self._drawing)) if row.turn.tier == "flex"]
        late = [row for row in late if row.is_check]
        if not late:
            return
        waiting = [*(row.job for row in self._waiting if not row.is_check), *(held.job for held in self._held)]
        needed = {weights_key(job.checkpoint) for job in waiting}
        for row in late:
            if weights_key(row.job.checkpoint) in needed:
                self._scheduler.promote(row.turn)

    def _dispatch_one(self) -> bool:
        """Start the first image that may start, and return whether there was one: the others then face other running
        images."""
        now = self._scheduler.clock()
        running = [run.turn for run in self._drawing]
        for row, ahead in start_order(self._waiting, running, self._speeds, self._scheduler.in_order):
            spec, starved = row.job.checkpoint, now - row.queued_at > FAIR_WAIT_S
            loaded = self._cache.find(spec)
            free = loaded is not None and not self._admission.is_busy(loaded, row)
            if not self._admission.may_start(row, loaded, ahead):
                if starved and row.exclusive:
                    return False
                if free:
                    self._admission.preempt_for(row, ahead, self._scheduler)
                continue
            if loaded is not None and free:
                self._start(row, loaded)
                return True
            if loaded is None and spec not in self._loads and spec not in self._blocked_loads:
                self._loads[spec] = asyncio.create_task(self._load_and_dispatch(spec))
            elif starved and spec in self._blocked_loads:
                return False  # nothing new starts until the checkpoints in use can be evicted
        return False

    async def _load_and_dispatch(self, spec: CheckpointSpec) -> None:
        """Load a checkpoint that waiting rows need, then dispatch them, or fail their jobs."""
        ended_before = self._ended_runs
        try:
            await self._cache.load(spec)
        except InsufficientMemory:
            if self._ended_runs == ended_before:  # else try again: the last run may have ended meanwhile
                self._blocked_loads.add(spec)
        except Exception as error:
            for active in [active for active in self._jobs.values() if active.job.checkpoint == spec]:
                self._fail(active, error, to_load_failed_event)
        finally:
            del self._loads[spec]
        self._dispatch()

    def _wait(self, row: Row) -> None:
        self._waiting.append(row)
        row.turn.remaining_s = row.estimate_s(self._speeds)
        self._scheduler.enter(row.turn)

    def _start(self, row: Row, loaded: LoadedCheckpoint) -> None:
        self._waiting.remove(row)
        row.found |= self._warmup.find_warning(row.job.checkpoint)
        self._cache.acquire(loaded)
        callbacks = RunCallbacks(
            on_start=lambda run: self._post(self._on_start, run),
            on_step=lambda run: self._post(self._on_step, run),
            on_drawn=lambda run: self._post(self._on_drawn, run),
            on_preview=lambda *preview: self._post(self._files.encode_preview, *preview),
        )
        run = Run(row, loaded, self._scheduler, callbacks)
        self._runs.add(run)
        self._drawing.add(run)
        future = self._loop.run_in_executor(self._run_threads, run_and_release, run.execute)
        future.add_done_callback(lambda future: self._on_end(run, future))

    def _on_start(self, run: Run) -> None:
        if (active := self._active_job(run)) and not active.started:
            active.started = True
            active.emit(Started())

    def _on_step(self, run: Run) -> None:
        if active := self._active_job(run):
            active.step += 1
            total = run.steps if LAYERS in run.row.found else active.job.n * run.steps
            active.emit(Progress(min(active.step, total), total))
            running_s = sum(other.turn.device_s for other in self._runs if other.row.job is active.job)
            if active.device_s + running_s > active.job.time_limit_s:
                self._fail(active, OutOfTime(f"at step {min(active.step, total)} of {total}"))
        if self._waiting:
            self._dispatch()

    def _on_drawn(self, run: Run) -> None:
        """Record that the device is free, and that the run's image is finished on the host."""
        self._drawing.discard(run)
        self._dispatch()

    def _on_end(self, run: Run, future: asyncio.Future[Pixels]) -> None:
        self._runs.discard(run)
        self._drawing.discard(run)
        self._scheduler.leave(run.turn)
        self._cache.release(run.loaded)
        self._ended_runs += 1
        self._blocked_loads.clear()
        error = future.exception()
        if active := self._active_job(run):
            active.device_s += run.turn.device_s
            active.merged |= run.turn.merged
        if error is None:
            self._record_speed(run)
            run.loaded.warmed_up = True
            self._files.encode(run.row, future.result())
        elif isinstance(error, Preempted | ModifiedWeights):
            self._wait_again(run.row)
        elif not isinstance(error, Cancelled):
            self._recover(run, error)
        self._evict_unneeded()
        self._dispatch()

    def _record_speed(self, run: Run) -> None:
        job = run.row.job
        if run.row.is_check:
            self._warmup.record_check(run)
        elif run.step or LAYERS not in run.row.found:  # else another row drew it along
            self._speeds.record(job.checkpoint, run.row.units(), run.turn.device_s)
            self._warmup.record_speed(job.checkpoint)

    def _recover(self, run: Run, error: BaseException) -> None:
        """Fail the run's job. But a run out of memory is first retried with the device to itself."""
        active = self._active_job(run)
        if active is None:
            return
        if not is_out_of_memory(error) or run.row.exclusive:
            self._fail(active, error)
            return
        clear_frames(error)  # they hold the tensors that did not fit
        run.row.exclusive = True
        active.step -= run.step
        self._freeing.add(freeing := asyncio.create_task(self._free_and_retry(run.row)))
        freeing.add_done_callback(self._freeing.discard)

    async def _free_and_retry(self, row: Row) -> None:
        """Free memory, and let the row wait again. Weights move on the loader's thread, so that cancels and other jobs'
        events are handled meanwhile."""
        try:
            await self._cache.free_memory()
        finally:
            self._wait_again(row)
            self._dispatch()

    def _wait_again(self, row: Row) -> None:
        row.start_over()
        if (active := self._jobs.get(row.job.id)) and not active.done:
            self._wait(row)

    def _active_job(self, run: Run) -> EngineJob | None:
        """Return the run's job, unless it is done."""
        active = self._jobs.get(run.row.job.id)
        return active if active and not active.done else None

    def _fail(self, active: EngineJob, error: BaseException, to_event: ToEvent = to_failed_event) -> None:
        if active.job.id.startswith(CHECK_PREFIX):
            self._warmup.record_failure(active.job.id, error)
        self._drop(active)
        active.emit(to_event(error, active.job))

    def _drop(self, active: EngineJob) -> None:
        """Remove all rows of a job, from the queue and from the device."""
        active.done = True
        self._held = [held for held in self._held if held is not active]
        for row in self._waiting:
            if row.job is active.job:
                self._scheduler.leave(row.turn)
        self._waiting = [row for row in self._waiting if row.job is not active.job]
        for run in self._runs:
            if run.row.job is active.job:
                run.cancelled = True
                self._scheduler.run_next(run.turn)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(call, *arguments)
