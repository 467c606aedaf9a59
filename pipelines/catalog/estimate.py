"""How much work a job is, and how long that takes. Pure; used by the engine's scheduling and the server's queue limit.

The unit of work is one denoising step of one megapixel. Its duration is measured for each checkpoint.
"""

from pathlib import Path

from pipelines.catalog.conditioning import task_of
from pipelines.catalog.plan import Plan, partial, plan_picture
from pipelines.protocol.images import CheckpointSpec, ImageJob, Runtime

GRID_PX = 16  # output sides are multiples of it; the pipeline's own multiple hardly changes the area
FIRST_UNIT_S = 0.5  # assumed for a unit until one has been measured
SMOOTHING = 0.3  # weight of a new measurement
CONTROLNET_SHARE = 1 / 3  # of a denoiser's pass: the encoding half of a U-Net (0.32 measured), or some of its blocks


def first_pass_steps(job: ImageJob) -> int:
    """Denoising steps of the first pass."""
    sampling = job.sampling
    return sampling.steps if task_of(job).starts_from_noise else partial(sampling.steps, sampling.strength).run


def picture_steps(job: ImageJob, plan: Plan) -> int:
    """Denoising steps of one of the job's pictures, over both passes and all tiles."""
    return first_pass_steps(job) + len(plan.tiles) * _tile_steps(job)


def work_units(job: ImageJob) -> float:
    """The work of the whole job. References that the denoiser attends to count like pixels drawn. ControlNets run at
    every step of the first pass; an IP-Adapter adds next to nothing to it.
    """
    plan = plan_picture(job.checkpoint, job.width_px, job.height_px, GRID_PX)
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


Weights = tuple[Path, Runtime, int]


class Speeds:
    """Seconds per unit of work, smoothed, by a checkpoint's weights and runtime options."""

    def __init__(self) -> None:
        self._unit_s: dict[Weights, float] = {}

    def unit_s(self, checkpoint: CheckpointSpec) -> float:
        """The duration of a unit on this checkpoint; the mean of the others until it has been measured."""
        measured = self._unit_s
        mean = sum(measured.values()) / len(measured) if measured else FIRST_UNIT_S
        return measured.get(_weights(checkpoint)) or mean

    def record(self, checkpoint: CheckpointSpec, units: float, elapsed_s: float) -> None:
        """Add a measurement. The first picture builds kernels and may compile, so a measurement of less than half the
        smoothed value replaces it."""
        if units > 0:
            unit_s = elapsed_s / units
            old = self._unit_s.get(_weights(checkpoint), unit_s)
            self._unit_s[_weights(checkpoint)] = unit_s if unit_s < old / 2 else old + SMOOTHING * (unit_s - old)


def _weights(checkpoint: CheckpointSpec) -> Weights:
    return checkpoint.path, checkpoint.runtime, checkpoint.version
