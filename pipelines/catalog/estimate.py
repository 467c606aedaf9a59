"""How much work a job is, and how long that will take. Pure; the engine and the server's queue both reckon with it.

The unit of work is one denoising step of one megapixel. What a unit takes is measured, for each checkpoint by itself.
"""

from pathlib import Path

from pipelines.catalog.plan import Plan, partial, plan_picture
from pipelines.protocol.images import CheckpointSpec, ImageJob, Runtime

GRID_PX = 16  # sides of output are multiples of it; the pipeline's own multiple hardly changes the area
FIRST_UNIT_S = 0.5  # what a unit takes, before one has been seen
SMOOTHING = 0.3  # of a new measurement


def first_pass_steps(job: ImageJob) -> int:
    """Denoising steps of the first pass: all of them from noise, some of them from a picture."""
    from_noise = not job.references or (job.mask is None and job.checkpoint.conditioning == "native")
    return job.steps if from_noise else partial(job.steps, job.strength).run


def picture_steps(job: ImageJob, plan: Plan) -> int:
    """Denoising steps of one of the job's pictures, over both passes and all tiles."""
    again = partial(job.steps, job.checkpoint.sampling.refine_strength).run
    return first_pass_steps(job) + len(plan.tiles) * again


def work_units(job: ImageJob) -> float:
    """The work of the whole job. References that the pipeline reads at every step count like pixels drawn."""
    plan = plan_picture(job.checkpoint, job.width_px, job.height_px, GRID_PX)
    read = len(job.references) if job.mask is None and job.checkpoint.conditioning == "native" else 0
    first = first_pass_steps(job) * plan.width * plan.height * (1 + read)
    again = partial(job.steps, job.checkpoint.sampling.refine_strength).run
    return job.n * (first + sum(again * tile.width * tile.height for tile in plan.tiles)) / 1e6


Weights = tuple[Path, Runtime, int]


class Speeds:
    """Seconds per unit of work, by a checkpoint's weights and how they sit on the device, as lately measured."""

    def __init__(self) -> None:
        self._unit_s: dict[Weights, float] = {}

    def unit_s(self, checkpoint: CheckpointSpec) -> float:
        """What a unit takes on this checkpoint; the mean of the others before it has been seen."""
        known = self._unit_s
        return known.get(_weights(checkpoint)) or (sum(known.values()) / len(known) if known else FIRST_UNIT_S)

    def measured(self, checkpoint: CheckpointSpec, units: float, took_s: float) -> None:
        """Take note of what some work has taken. The first picture builds kernels, and may compile: what is far faster
        than all before is believed at once."""
        if units > 0:
            seen = took_s / units
            old = self._unit_s.get(_weights(checkpoint), seen)
            self._unit_s[_weights(checkpoint)] = seen if seen < old / 2 else old + SMOOTHING * (seen - old)


def _weights(checkpoint: CheckpointSpec) -> Weights:
    return checkpoint.path, checkpoint.runtime, checkpoint.version
