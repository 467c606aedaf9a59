"""How much work a job is, and how long that takes. Pure; used by the engine's scheduling and the server's queue limit.

The unit of work is one denoising step of one megapixel. Its duration is measured for each checkpoint.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pipelines.checkpoints.work.plan import Plan, partial, plan_job, task_of
from pipelines.protocol.images import CheckpointSpec, Control, ImageJob, Runtime


class WeightsKey(NamedTuple):
    """Specs with the same files and runtime options share the weights, also where their sampling differs."""

    path: Path
    config: Path | None
    base: Path | None
    runtime: Runtime
    version: str
    controls: tuple[Control, ...] = ()
    parts: tuple[tuple[str, Path], ...] = ()


def weights_key(spec: CheckpointSpec) -> WeightsKey:
    """Return the key of a spec's weights: specs with equal keys share one copy."""
    return WeightsKey(spec.path, spec.config, spec.base, spec.runtime, spec.version, spec.controls, spec.parts)


def replaces(new: CheckpointSpec, old: CheckpointSpec) -> bool:
    """Return whether `new` is a swap of `old`: other files for an otherwise equal catalog file, or the same files with
    other settings."""
    as_old = replace(new, name=old.name, path=old.path, version=old.version, sampling=old.sampling)
    return new.path == old.path or replace(as_old, adapters_version=old.adapters_version) == old


def weights_state(job: ImageJob) -> Hashable:
    """Return the state in which a job needs the weights: its LoRA adapters, and its IP-Adapters with their strengths.
    Only jobs with equal ones can be drawn at once."""
    adapters = {control.name for control in job.checkpoint.controls if control.kind == "ip-adapter"}
    inputs = ((control.name, control.strength) for control in job.controls if control.name in adapters)
    return job.sampling.loras, tuple(inputs)


GRID_PX = 16  # output sides are multiples of it; the pipeline's own multiple hardly changes the area
FIRST_UNIT_S = 0.5  # assumed for a unit until one has been measured
SMOOTHING = 0.3  # weight of a new measurement
CONTROLNET_SHARE = 1 / 3  # of a denoiser's pass: the encoding half of a U-Net (0.32 measured), or some of its blocks


def first_pass_steps(job: ImageJob) -> int:
    """Return the number of denoising steps of the first pass; none of a job that enlarges its reference."""
    sampling = job.sampling
    if job.enlarges:
        return 0
    return sampling.steps if task_of(job).starts_from_noise else partial(sampling.steps, sampling.strength).run


def image_steps(job: ImageJob, plan: Plan) -> int:
    """Return the number of denoising steps of one of the job's images, over both passes and all tiles."""
    return first_pass_steps(job) + len(plan.tiles) * _tile_steps(job)


def work_units(job: ImageJob) -> float:
    """Return the work of the whole job. References that the denoiser attends to count like pixels drawn. ControlNets
    run at every step of the first pass; an IP-Adapter adds next to nothing to it."""
    plan = plan_job(job, GRID_PX)
    attended = len(job.references) if task_of(job).reads_references else 0
    passes = 1 + attended + CONTROLNET_SHARE * _controlnets(job)
    first = first_pass_steps(job) * plan.width * plan.height * passes
    tiles = _tile_steps(job) * sum(tile.width * tile.height for tile in plan.tiles)
    return job.n * (first + tiles) / 1e6


def _controlnets(job: ImageJob) -> int:
    nets = {control.name for control in job.checkpoint.controls if control.kind == "controlnet"}
    return sum(control.name in nets for control in job.controls)


def _tile_steps(job: ImageJob) -> int:
    return partial(job.sampling.steps, job.sampling.refine_strength).run


class Timing(NamedTuple):
    """How long some units of work took together."""

    units: float
    seconds: float


def unit_s_at(timings: Iterable[Timing], units: float) -> float | None:
    """Estimate the seconds of a unit where so many are done together, from small images: most of their time is a fixed
    cost, which larger ones have too, but once. None without timings.

    The line goes through the shortest times of the smallest and of the largest images: longer ones include other work
    that ran beside them. No unit takes longer than the fastest one that was seen.
    """
    shortest: dict[float, float] = {}
    for timing in timings:
        shortest[timing.units] = min(timing.seconds, shortest.get(timing.units, math.inf))
    if not shortest:
        return None
    small, large = min(shortest), max(shortest)
    grown_s = max(0.0, shortest[large] - shortest[small])
    slope_s = grown_s / (large - small) if large > small else shortest[large] / large
    fixed_s = max(0.0, shortest[large] - slope_s * large)
    fastest_s = min(seconds / units for units, seconds in shortest.items())
    return min(fastest_s, (fixed_s + slope_s * units) / units)


class Speeds:
    """Seconds per unit of work, smoothed, by a checkpoint's weights and runtime options."""

    def __init__(self) -> None:
        self._unit_s: dict[WeightsKey, float] = {}
        self._guessed: set[WeightsKey] = set()  # not measured on an image that somebody asked for

    def unit_s(self, checkpoint: CheckpointSpec) -> float:
        """Return the seconds of a unit on this checkpoint; the mean of the others until it has been measured."""
        measured = self._unit_s
        mean = sum(measured.values()) / len(measured) if measured else FIRST_UNIT_S
        return measured.get(weights_key(checkpoint)) or mean

    def begin_with(self, checkpoint: CheckpointSpec, unit_s: float) -> None:
        """Begin with a speed that was measured before this process. The first measurement here is smoothed into it."""
        key = weights_key(checkpoint)
        if key not in self._unit_s and is_duration(unit_s):
            self._unit_s[key] = unit_s

    def guess(self, checkpoint: CheckpointSpec, unit_s: float) -> None:
        """Begin with a guess, in place of an earlier one. The first measurement replaces it."""
        key = weights_key(checkpoint)
        if (key not in self._unit_s or key in self._guessed) and is_duration(unit_s):
            self._unit_s[key] = unit_s
            self._guessed.add(key)

    def record(self, checkpoint: CheckpointSpec, units: float, elapsed_s: float) -> None:
        """Add a measurement. The first image builds kernels and may compile, so a measurement of less than half the
        smoothed value replaces it. A value that is no duration, such as NaN, would stay in all later ones, and is left
        out."""
        if units > 0 and is_duration(elapsed_s):
            unit_s, key = elapsed_s / units, weights_key(checkpoint)
            old = unit_s if key in self._guessed else self._unit_s.get(key, unit_s)
            self._guessed.discard(key)
            self._unit_s[key] = unit_s if unit_s < old / 2 else old + SMOOTHING * (unit_s - old)


def is_duration(seconds: float) -> bool:
    """Return whether a value is a duration, above 0 and finite. All means and smoothed values are of these alone."""
    return math.isfinite(seconds) and seconds > 0
