"""The images that a checkpoint draws for nobody: they build kernels, measure its speed and show its capabilities. Where
that is on disk already (pipelines.images.warmup.check_records), one image is enough.

What every call needs is tried before the checkpoint serves. What only some calls need may be tried while it serves, as
images that come after all others: a call that needs something of it waits until that was tried (late_checks).
"""

import asyncio
import contextlib
import traceback
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pipelines.checkpoints.errors import CheckpointError, NotServed
from pipelines.checkpoints.work.estimate import Speeds, Timing, WeightsKey, unit_s_at, weights_key
from pipelines.device.failures import Cancelled, OutOfTime, is_device_error, is_out_of_memory
from pipelines.images.drawing.image_checks import InvalidImage
from pipelines.images.drawing.run import Run
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.checkpoint_cache import LoadedCheckpoint
from pipelines.images.scheduling.batching import CHECK_PREFIX
from pipelines.images.scheduling.row_limits import RowLimits
from pipelines.images.tasks import UnsupportedTask
from pipelines.images.warmup.adapter_checks import AdapterChecker
from pipelines.images.warmup.capability_checks import AT_ONCE, CapabilityChecker, FirstFound
from pipelines.images.warmup.check_jobs import TWO_PASSES
from pipelines.images.warmup.check_records import CheckRecords, Subject, describe, list_files
from pipelines.images.warmup.late_checks import late_needs, why_unmet
from pipelines.protocol.images import CheckpointSpec, EncodedImage, Event, Failed, Finished, ImageJob
from pipelines.protocol.messages import Capabilities, FailedCheck
from pipelines.protocol.tiers import ServiceTier

TYPICAL_STEPS = 20  # of an image, which share its fixed cost on a GPU
SPEED_CHANGE = 0.2  # part by which a speed must have changed before it is written again

Submit = Callable[[ImageJob], AsyncGenerator[Event, None]]
Find = Callable[[CheckpointSpec], LoadedCheckpoint | None]
CapabilitiesKey = tuple[Hashable, ...]  # what they follow from; first the WeightsKey


@dataclass(slots=True)
class _Findings:
    """A checkpoint's capabilities, and the subject of their record on disk, if there is one. `late` are those that were
    tried while it served."""

    capabilities: Capabilities
    subject: Subject | None = None
    late: bool = False


@dataclass(slots=True, eq=False)
class _Trying:
    """A checkpoint that serves and is tried further: the capabilities as far as they are known, and the checks that are
    over."""

    capabilities: Capabilities
    tried: set[str]
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Serving:
    """What the engine does about a checkpoint that serves while it is tried: `begins` and `goes_on`, after each group
    of checks, are called with what is known, and `is_wanted` says whether to try further."""

    begins: Callable[[Capabilities], None]
    goes_on: Callable[[], None]
    is_wanted: Callable[[], bool]


@dataclass(eq=False)
class Warmup:
    """Warms checkpoints up for the engine, on its event loop. `submit` draws a job, `find` returns a checkpoint that is
    in memory; without `records` no findings are stored."""

    _device: torch.device
    _submit: Submit
    _find: Find
    _speeds: Speeds
    _limits: RowLimits
    _records: CheckRecords | None = None
    _found: dict[CapabilitiesKey, _Findings] = field(default_factory=dict)
    _errors: dict[str, BaseException] = field(default_factory=dict)  # of trials, until they are told
    _timings: dict[WeightsKey, list[Timing]] = field(default_factory=dict)  # of trials
    _trying: dict[CapabilitiesKey, _Trying] = field(default_factory=dict)
    _writes: set[asyncio.Task[None]] = field(default_factory=set)

    async def list_files(self, spec: CheckpointSpec) -> Sequence[str]:
        """List the files for `run`, before the checkpoint is loaded."""
        return () if self._records is None else await asyncio.to_thread(list_files, spec)

    async def run(
        self, spec: CheckpointSpec, loaded: LoadedCheckpoint, files: Sequence[str], serving: Serving
    ) -> Capabilities:
        """Draw with a loaded checkpoint, and return its capabilities. Raises CheckpointError, and NotServed."""
        checkpoint, key = loaded.checkpoint, _key(spec)
        if (trying := self._trying.get(key)) is not None:  # for another model
            serving.begins(trying.capabilities)
            await trying.over.wait()
        trials = _CheckRunner(self._submit, self._errors, serving.is_wanted)
        checker = CapabilityChecker(spec, checkpoint.multiple_px, trials.draw)
        if key not in self._found:
            subject = await self._describe(spec, loaded, files)
            found = await self._recorded_capabilities(checker, loaded, subject)
            if found is None:
                found = await self._try(checker, loaded, trials, serving)
                if subject is not None and not trials.passing:
                    await self._write(subject, found)
                else:
                    subject = None
            self._found[key] = _Findings(found, subject, trials.late)
            if self._records is not None and subject is not None:
                passes = await asyncio.to_thread(self._records.read_passes, subject)
                self._limits.restore(weights_key(spec), passes)
        capabilities = self._found[key].capabilities
        _require_second_pass(spec, checkpoint, capabilities)
        if checkpoint.runtime.compile and not loaded.compiled_shapes:
            for job in checker.jobs.compiled_shapes(capabilities, refined=spec.refined):
                await trials.draw(job)
            loaded.compiled_shapes = True
        return capabilities

    async def _describe(self, spec: CheckpointSpec, loaded: LoadedCheckpoint, files: Sequence[str]) -> Subject | None:
        """Describe the subject of the checks. None without records, and for files that have changed while they were
        read: the loaded weights are of neither state."""
        if self._records is None:
            return None
        subject = await asyncio.to_thread(describe, spec, loaded.checkpoint.runtime, self._device)
        return subject if subject.facts["files"] == list(files) else None

    async def _recorded_capabilities(
        self, checker: CapabilityChecker, loaded: LoadedCheckpoint, subject: Subject | None
    ) -> Capabilities | None:
        """Return the capabilities that were recorded, once an image was drawn with them here too; else None."""
        if self._records is None or subject is None:
            return None
        found = await asyncio.to_thread(self._records.read, subject)
        if found is None:
            return None
        if not loaded.warmed_up and not await checker.passes_first_check(found, native=self._warms_native(loaded)):
            return None
        if found.unit_s is not None:
            self._speeds.begin_with(checker.spec, found.unit_s)
        return found

    async def _try(
        self, checker: CapabilityChecker, loaded: LoadedCheckpoint, trials: "_CheckRunner", serving: Serving
    ) -> Capabilities:
        checkpoint = loaded.checkpoint
        self._timings[weights_key(checker.spec)] = []
        first = await checker.find_first(checkpoint.capabilities, warmup_native=self._warms_native(loaded))
        found = replace(first.capabilities, prompt_tokens=trials.prompt_tokens)
        if _may_serve_early(checkpoint):
            _require_second_pass(checker.spec, checkpoint, found)
            trials.late = True
            found = await self._try_late(checker, first._replace(capabilities=found), serving)
        else:
            found = [each async for each, _ in checker.find_others(first._replace(capabilities=found))][-1]
        found = await self._try_adapters(checker, found)
        if checkpoint.merger is not None and (why := checkpoint.merger.refused) is not None:
            found = replace(found, failed_checks=(*found.failed_checks, FailedCheck("a shared forward pass", why)))
        again = checker.jobs.first_check(found, native=True)
        if self._on_gpu and again is not None:
            await checker.draw(again.job)  # for the time alone: its kernels are there now
        self._guess_speed(checker.spec)
        self._timings.pop(weights_key(checker.spec), None)  # another model's checks may have ended theirs
        return replace(found, unit_s=self._speeds.unit_s(checker.spec))

    async def _try_late(self, checker: CapabilityChecker, first: FirstFound, serving: Serving) -> Capabilities:
        """Let the checkpoint serve, and try what some calls need meanwhile."""
        self._guess_speed(checker.spec)
        found = replace(first.capabilities, unit_s=self._speeds.unit_s(checker.spec))
        trying = self._trying[_key(checker.spec)] = _Trying(found, {first.check.name})
        try:
            serving.begins(found)
            async for found, tried in checker.find_others(first):
                trying.capabilities = found
                trying.tried |= tried
                serving.goes_on()
        finally:
            del self._trying[_key(checker.spec)]
            trying.over.set()
        return found

    def _guess_speed(self, spec: CheckpointSpec) -> None:
        image = spec.native_area_px / 1e6 * (TYPICAL_STEPS if self._on_gpu else 1)
        if (unit_s := unit_s_at(self._timings.get(weights_key(spec), ()), image)) is not None:
            self._speeds.guess(spec, unit_s)

    def is_untried(self, job: ImageJob) -> bool:
        """Return whether a job needs something that is still to be tried of its checkpoint, which serves already."""
        trying = self._trying.get(_key(job.checkpoint))
        return trying is not None and any(need.check not in trying.tried for need in late_needs(job))

    def why_refused(self, job: ImageJob) -> UnsupportedTask | None:
        """Return what a job needs and was withdrawn since its checkpoint serves; None if nothing was. Its request was
        checked by what was known before."""
        key = _key(job.checkpoint)
        known: _Trying | _Findings | None = self._trying.get(key)
        if known is None and (found := self._found.get(key)) is not None and found.late:
            known = found
        return None if known is None else why_unmet(job, known.capabilities)

    def may_share(self, spec: CheckpointSpec) -> bool:
        """Return whether images of a checkpoint may share the device, though more is tried of it."""
        trying, weights = self._trying.get(_key(spec)), weights_key(spec)
        known = any(found.capabilities.at_once for key, found in self._found.items() if key[0] == weights)
        return known or trying is None or (AT_ONCE in trying.tried and trying.capabilities.at_once)

    async def _try_adapters(self, checker: CapabilityChecker, found: Capabilities) -> Capabilities:
        """Try the adapters of the folder. The weights are loaded anew after an adapter that leaves them changed."""
        first = checker.jobs.first_check(found, native=False)
        if first is None:
            return found

        def refuse(file: Path, reason: str) -> None:
            if (loaded := self._find(checker.spec)) is not None:
                loaded.checkpoint.adapters.refuse(file, reason)

        found = await AdapterChecker(checker.spec, checker.draw, first.job, refuse).find(found)
        loaded = self._find(checker.spec)
        fits = loaded.checkpoint.adapters.fits if loaded is not None else ()
        return replace(found, adapter_fits=tuple(each for each in fits if each.name not in found.unsupported_adapters))

    async def _write(self, subject: Subject, found: Capabilities) -> None:
        if self._records is not None:
            await asyncio.to_thread(self._records.write, subject, found)

    @property
    def _on_gpu(self) -> bool:
        return self._device.type != "cpu"

    def _warms_native(self, loaded: LoadedCheckpoint) -> bool:
        """Return whether the native size is warmed: a GPU's kernels are built for sizes; on a CPU a smaller image is
        enough."""
        return self._on_gpu and not loaded.warmed_up

    def find_warning(self, spec: CheckpointSpec) -> dict[str, Any]:
        """Return what an image's file and answer say of a checkpoint whose seeds do not decide its images: JSON."""
        known = self._trying.get(_key(spec)) or self._found.get(_key(spec))
        return {} if known is None or known.capabilities.reproducible else {"reproducible": False}

    def record_failure(self, job_id: str, error: BaseException) -> None:
        """Record that a capability check has failed."""
        self._errors[job_id] = error

    def record_check(self, run: Run) -> None:
        """Record that a capability check's image was drawn. On a CPU its last step alone is timed, if it is not the
        first: the rest of so small an image takes longer."""
        timings = self._timings.get(weights_key(run.row.job.checkpoint))
        if timings is None or run.row.job.n > 1 or run.is_refined or (run.steps < 2 and not self._on_gpu):
            return
        units = run.row.units()
        timings.append(Timing(units, run.turn.device_s) if self._on_gpu else Timing(units / run.steps, run.last_step_s))

    def record_speed(self, spec: CheckpointSpec) -> None:
        """Record the checkpoint's speed, as a caller's image has shown it, and what sharing passes gains: the next
        start uses it."""
        found, unit_s = self._found.get(_key(spec)), self._speeds.unit_s(spec)
        if found is None or found.subject is None or self._records is None:
            return
        if self._limits.has_new_measurements(weights_key(spec)):
            passes = self._limits.export(weights_key(spec))
            self._write_later(asyncio.to_thread(self._records.write_passes, found.subject, passes))
        kept = found.capabilities.unit_s
        if kept is None or abs(unit_s - kept) > SPEED_CHANGE * kept:
            found.capabilities = replace(found.capabilities, unit_s=unit_s)
            self._write_later(self._write(found.subject, found.capabilities))

    def _write_later(self, write: Coroutine[Any, Any, None]) -> None:
        self._writes.add(task := asyncio.create_task(write))
        task.add_done_callback(self._writes.discard)

    def unload_except(self, keys: Iterable[WeightsKey]) -> None:
        """Drop the findings about all other weights, as far as they are not on disk."""
        retained = set(keys)
        self._found = {key: found for key, found in self._found.items() if key[0] in retained}


class _CheckRunner:
    """The images of one checkpoint. `errors` are of those that have failed, by job; those that are `late` come after
    all other images, while the checkpoint is wanted."""

    def __init__(self, submit: Submit, errors: dict[str, BaseException], is_wanted: Callable[[], bool]) -> None:
        self._submit = submit
        self._errors = errors
        self._is_wanted = is_wanted
        self.late = False
        self.passing = False  # one failed for a reason of the moment, which the next time need not have
        self.prompt_tokens: int | None = None  # the most that the first one's prompt may have

    async def draw(self, job: ImageJob) -> tuple[EncodedImage, ...] | str:
        """Draw the job's images, and return them, or the reason why they fail, in one line. One image shares no pass:
        that of a caller who waits for the checkpoint is what it is alone. Raises NotServed."""
        if self.late and not self._is_wanted():
            raise NotServed
        sampling = replace(job.sampling, batch="exact") if job.n == 1 else job.sampling
        tier: ServiceTier = "flex" if self.late else "default"
        job = replace(job, id=f"{CHECK_PREFIX}{uuid.uuid4().hex}", sampling=sampling, tier=tier)
        async with contextlib.aclosing(self._submit(job)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    if self.prompt_tokens is None:
                        self.prompt_tokens = event.found.get("prompt_tokens", {}).get("of")
                    return event.images
                if isinstance(event, Failed):
                    error = self._errors.pop(job.id)
                    self.passing |= _is_passing(error)
                    return _reason(error)
        return "the engine ended without an image"


def _reason(error: BaseException) -> str:
    """Return the reason why a check failed: our own errors are whole sentences, others need their class."""
    if isinstance(error, InvalidImage):
        return str(error)
    if isinstance(error, UnsupportedTask | CheckpointError):
        cause = error.__cause__
        return str(cause if isinstance(cause, CheckpointError) else error)  # such as why an adapter does not fit
    return traceback.format_exception_only(error)[0].strip().partition("\n")[0]  # libraries go on with advice


def _is_passing(error: BaseException) -> bool:
    """Return whether an error is of the moment, not of the checkpoint."""
    return isinstance(error, Cancelled | OutOfTime) or is_out_of_memory(error) or is_device_error(error)


def _key(spec: CheckpointSpec) -> CapabilitiesKey:
    noise = (spec.sampling.scheduler, spec.sampling.shift, spec.sampling.scheduler_config)
    return weights_key(spec), spec.adapters_version, spec.conditioning, spec.max_references, spec.schedulers, noise


def _may_serve_early(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint may serve before all of it was tried. Not where that may refuse it, changes its
    weights for a while, or has code built that calls would wait for."""
    spec = checkpoint.spec
    changes = bool(spec.controls) or spec.runtime.lora_folder is not None
    return not (changes or checkpoint.runtime.compile or checkpoint.is_upscaler)


def _require_second_pass(spec: CheckpointSpec, checkpoint: Checkpoint, capabilities: Capabilities) -> None:
    """Raise CheckpointError if models of a checkpoint need a second pass that it does not have."""
    if spec.refined and not capabilities.second_pass:
        raise CheckpointError(
            f"{spec.path}: {checkpoint.pipeline_class.__name__} can't redraw a part of an image, which its models "
            'above max_area_px need for their second pass; leave those models out, or write enlarge = "resize"'
            f"{_why_two_passes(capabilities)}"
        )


def _why_two_passes(capabilities: Capabilities) -> str:
    reasons = [str(failed_checks) for failed_checks in capabilities.failed_checks if failed_checks.what == TWO_PASSES]
    return f" ({reasons[0]})" if reasons else ""
