"""The images that warmup draws to try a checkpoint: a small one, and one for each capability."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from pipelines.checkpoints.work.plan import fit_refine_strength, plan_image
from pipelines.images.warmup.control_checks import checkerboard
from pipelines.protocol.images import CheckpointSpec, ControlInput, Encoding, ImageJob, RawImage
from pipelines.protocol.messages import Capabilities, ControlledWith

MIN_SIDE: Final = 4  # in multiples of multiple_px
FIRST_STEPS: Final = 2  # the first of them includes what is built and allocated only once
PROMPT: Final = "a red house on green grass under a blue sky"
LONG_PROMPT: Final = ", and ".join([PROMPT] * 120)  # 1500 tokens or more
OTHER_PROMPT: Final = "a portrait of an old man at night, in black and white"
TEXT: Final = "text"
REFERENCE: Final = "a reference"
TWO_REFERENCES: Final = "two references"
MASK: Final = "a mask"
NOT_SQUARE: Final = "an image that is no square"
TWO_PASSES: Final = "a second pass"
ENLARGED: Final = "an enlarged image"
GUIDANCE: Final = "guidance"
NEGATIVE_PROMPT: Final = "a negative prompt"
TRANSPARENT: Final = "a transparent background"
LONG: Final = "all of a long prompt"
INPUTS: Final = frozenset({REFERENCE, TWO_REFERENCES, MASK})
OPTIONS: Final = frozenset({TRANSPARENT, TWO_PASSES, LONG})


class Check(NamedTuple):
    """An image to try while `needs` is true of the capabilities. `without` are the capabilities that are withdrawn if
    it fails."""

    name: str
    job: ImageJob
    without: Mapping[str, Any]  # fields of Capabilities
    needs: Callable[[Capabilities], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class CheckJobs:
    """Makes the jobs that try one checkpoint."""

    spec: CheckpointSpec
    multiple_px: int

    def first_check(self, capabilities: Capabilities, *, native: bool) -> Check | None:
        """Return the image that a checkpoint with these capabilities draws first; None if it has none."""
        side_px = self._native_px if native else self._side_px
        if self.spec.conditioning == "upscale":
            return (
                Check(ENLARGED, self._enlarging(side_px), {"second_pass": False}) if capabilities.second_pass else None
            )
        if capabilities.text:
            return Check(TEXT, self._job(side_px), {"text": False})
        if capabilities.references:
            return Check(REFERENCE, self._job(side_px, references=1), {"references": 0})
        if capabilities.mask:
            return Check(MASK, self._job(side_px, references=1, mask=True), {"mask": False})
        return None

    def others(self, shown: ImageJob, short: ImageJob) -> Iterator[Check]:
        """Yield an image for each input, and one of another shape. `short` is the first image, `shown`, in the
        fewest steps in which it is drawn. The other shape has the steps of `shown`: its second is timed."""
        side_px, steps = self._side_px, short.sampling.steps
        one, two = (self._job(side_px, references=count, steps=steps) for count in (1, 2))
        masked = self._job(side_px, references=1, mask=True, steps=steps)
        yield Check(REFERENCE, one, {"references": 0}, lambda has: has.references > 0)
        yield Check(TWO_REFERENCES, two, {"references": 1}, lambda has: has.references > 1)
        yield Check(MASK, masked, {"mask": False}, lambda has: has.mask)
        yield Check(NOT_SQUARE, self._widen(shown), {"any_ratio": False})

    def options(self, capabilities: Capabilities, job: ImageJob) -> Iterator[Check]:
        """Yield an image for each of what else a call may ask for: a background; a second pass, which takes some of a
        checkpoint's own steps if it can't take others; and a prompt that is longer than any class reads: in windows, or
        up to the longest that the class lets through, which the denoiser need not take."""
        if capabilities.transparent:
            seen_through = replace(job, encoding=replace(job.encoding, background="transparent"))
            yield Check(TRANSPARENT, seen_through, {"transparent": False})
        if capabilities.second_pass:
            yield Check(TWO_PASSES, self.two_passes(capabilities, job), {"second_pass": False})
        if "chunk" in capabilities.long_prompts:
            long = replace(job, prompt=LONG_PROMPT, sampling=replace(job.sampling, long_prompt="chunk"))
            yield Check(LONG, long, {"long_prompts": ("refuse", "tell")})

    def with_control(self, way: ControlledWith, steps: int) -> ImageJob:
        """Return a job for a control beside a prompt, a reference or a mask."""
        return self._job(self._side_px, references=int(way != "text"), mask=way == "mask", steps=steps)

    def two_passes(self, capabilities: Capabilities, shown: ImageJob) -> ImageJob:
        """Return the job of the smallest image with a second pass, with the native side as its height. It is made also
        for a checkpoint whose larger images are only scaled: capabilities are those of its weights."""
        height_px = width_px = shown.height_px
        checkpoint = replace(shown.checkpoint, max_area_px=height_px**2, enlarge="redraw")
        while plan_image(checkpoint, width_px, height_px, self.multiple_px).finish != "refine":
            width_px += self.multiple_px
        sampling = shown.sampling if capabilities.any_steps else fit_refine_strength(shown.sampling)
        return replace(shown, checkpoint=checkpoint, sampling=sampling, width_px=width_px)

    def compiled_shapes(self, capabilities: Capabilities, *, refined: bool) -> Iterator[ImageJob]:
        """Yield the jobs whose shapes would each be compiled while calls wait: at the native size, of one row and of
        two (more rows take the code of two), and with the second pass if its models have one."""
        first = self.first_check(capabilities, native=True)
        if first is None:
            return
        yield first.job
        yield replace(first.job, n=2)
        if refined and capabilities.second_pass:
            yield self.two_passes(capabilities, first.job)

    def _enlarging(self, side_px: int) -> ImageJob:
        """Return the job of an image of two tiles, enlarged twice."""
        width_px = side_px * 3 // 2
        spec = replace(self.spec, native_area_px=side_px**2)
        image = _gradient(side_px, width_px)
        job = replace(self._job(side_px, steps=1), checkpoint=spec, enlarges=True, references=(image,))
        return replace(job, width_px=2 * width_px, height_px=2 * side_px)

    @property
    def _native_px(self) -> int:
        return self.multiple_px * max(1, round(math.sqrt(self.spec.native_area_px) / self.multiple_px))

    @property
    def _side_px(self) -> int:
        """Return a quarter of the native side in px, in which most checkpoints still draw something."""
        return min(self._native_px, self.multiple_px * max(MIN_SIDE, self._native_px // self.multiple_px // 4))

    def _widen(self, job: ImageJob) -> ImageJob:
        """Return the job made wider by half, to an odd number of multiples, in the same area as far as the plan
        goes."""
        width_px = self.multiple_px * (job.width_px // self.multiple_px * 3 // 2 | 1)
        area_px = width_px * job.height_px
        checkpoint = replace(job.checkpoint, native_area_px=area_px, max_area_px=area_px)
        return replace(job, checkpoint=checkpoint, width_px=width_px)

    def _job(self, side_px: int, *, references: int = 0, mask: bool = False, steps: int = FIRST_STEPS) -> ImageJob:
        """Return the job of a square image, from up to two references that differ."""
        images, own = (_gradient(side_px), rotated(_gradient(side_px))), self.spec.own_map
        return ImageJob(
            id="probe",
            checkpoint=replace(self.spec, native_area_px=side_px**2),  # else it would be drawn larger and downscaled
            prompt=PROMPT,
            sampling=self.spec.sampling.resolve(steps=steps),
            width_px=side_px,
            height_px=side_px,
            n=1,
            seed=0,
            references=images[:references],
            mask=_left_half(side_px) if mask else None,
            encoding=Encoding(),
            metadata={},
            time_limit_s=3600,
            controls=() if own is None else (ControlInput(own.name, checkerboard(side_px, side_px), own.strength),),
        )


def scheduler_check(name: str) -> str:
    """Return the name of the check of a scheduler that requests may choose."""
    return f"the scheduler {name}"


def with_guidance(job: ImageJob, scale: float) -> ImageJob:
    """Return the job with this guidance."""
    return replace(job, sampling=replace(job.sampling, guidance=scale))


def with_negative_prompt(job: ImageJob) -> ImageJob:
    """Return the job with more words in its negative prompt."""
    return replace(
        job, sampling=replace(job.sampling, negative_prompt=f"{job.sampling.negative_prompt} blurred".strip())
    )


def with_second_rotated(job: ImageJob) -> ImageJob:
    """Return the job with its second reference turned."""
    first, second = job.references
    return replace(job, references=(first, rotated(second)))


def retry_jobs(job: ImageJob) -> Iterator[ImageJob]:
    """Yield the job in more steps from other noise; then from that noise alone, for checkpoints that draw in no other
    steps."""
    more = replace(job.sampling, steps=max(4, 2 * job.sampling.steps))
    yield replace(job, sampling=more, seed=job.seed + 1)
    yield replace(job, seed=job.seed + 1)


def drawn_boxes(job: ImageJob) -> list[tuple[int, int, int, int] | None]:
    """Return the parts of the image that the checkpoint has drawn apart, as boxes: under the mask, or in the tiles
    of a second pass. None is all of it."""
    left, right = (0, 0, job.width_px // 2, job.height_px), (job.width_px // 2, 0, job.width_px, job.height_px)
    if job.mask is not None:
        return [left]
    return [left, right] if job.width_px > job.height_px else [None]


def rotated(image: RawImage) -> RawImage:
    """Return a square RGB image turned clockwise by a quarter."""
    pixels = np.frombuffer(image.data, np.uint8).reshape(image.height_px, image.width_px, 3)
    return replace(image, data=np.rot90(pixels, -1).tobytes())


def _gradient(height_px: int, width_px: int | None = None) -> RawImage:
    width_px = width_px or height_px
    ramp = bytes(255 * x // width_px for x in range(width_px) for _ in range(3))
    return RawImage(width_px, height_px, "RGB", ramp * height_px)


def _left_half(side_px: int) -> RawImage:
    """Return a mask that repaints the left half."""
    return RawImage(side_px, side_px, "L", (b"\xff" * (side_px // 2) + b"\0" * (side_px - side_px // 2)) * side_px)
