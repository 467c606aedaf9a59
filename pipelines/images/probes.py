"""The pictures that a checkpoint draws before it serves: one that measures its speed, and one for each ability.

What a class announces may still break on its weights, or in diffusers itself. So each ability is tried at the smallest
size, and one that fails is withdrawn: its callers get a 400 that names the field, not a failed call.
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.catalog.conditioning import MODES, Task
from pipelines.catalog.plan import plan_picture
from pipelines.protocol.images import CheckpointSpec, Encoding, ImageJob, Picture
from pipelines.protocol.messages import Abilities

MIN_SIDE: Final = 4  # in multiples of multiple_px
PROMPT: Final = "a red house on green grass under a blue sky"
Draw = Callable[[ImageJob], Awaitable[str | None]]  # why it failed, in one line; None if it was drawn


class Probe(NamedTuple):
    """A picture to try. `without` is what is withdrawn if it fails."""

    name: str
    job: ImageJob
    without: Mapping[str, Any]  # fields of Abilities


def announce(spec: CheckpointSpec, tasks: Mapping[Task, Any], *, negative_prompt: bool, guidance: bool) -> Abilities:
    """What the pipeline classes promise, before it is tried."""
    return Abilities(
        text=Task.TEXT in tasks,
        references=spec.max_references if MODES[spec.conditioning].task in tasks else 0,
        mask=Task.INPAINT in tasks,
        second_pass=Task.REDRAW in tasks or Task.INPAINT in tasks,
        negative_prompt=negative_prompt,
        guidance=guidance,
        any_steps=True,
    )


@dataclass(frozen=True, slots=True)
class Prober:
    """Tries a checkpoint. `draw` gives each job an id of its own."""

    spec: CheckpointSpec
    multiple_px: int
    draw: Draw

    async def find_abilities(self, announced: Abilities, *, warmup_native: bool) -> Abilities:
        """What of it works. The first picture is drawn from text, or else from a reference, or from one with a mask; it
        has the native size if `warmup_native`. Raises CheckpointError if none of them is drawn.
        """
        abilities = announced
        while (probe := self._first(abilities, native=warmup_native)) is not None:
            if (failed := await self.draw(probe.job)) is None:
                break
            abilities = _withdraw(abilities, probe, failed)
        else:
            reason = abilities.withdrawn[0].partition(": ")[2] if abilities.withdrawn else "it has no pipeline"
            raise CheckpointError(f"{self.spec.path} loads and does not draw: {reason}")
        for other in self._others(abilities):
            if other.name == "two references" and not abilities.references:
                continue  # one has failed
            if (failed := await self.draw(other.job)) is not None:
                abilities = _withdraw(abilities, other, failed)
        return abilities

    def _first(self, abilities: Abilities, *, native: bool) -> Probe | None:
        side_px = self._native_px if native else self._side_px
        if abilities.text:
            return Probe("text", self._job(side_px), {"text": False})
        if abilities.references:
            return Probe("a reference", self._job(side_px, references=1), {"references": 0})
        if abilities.mask:
            return Probe("a mask", self._job(side_px, references=1, mask=True), {"mask": False})
        return None

    def _others(self, abilities: Abilities) -> Iterator[Probe]:
        side_px = self._side_px
        shown = self._first(abilities, native=False)
        if shown is None:
            return
        if abilities.references and shown.name != "a reference":
            yield Probe("a reference", self._job(side_px, references=1), {"references": 0})
        if abilities.references > 1:
            yield Probe("two references", self._job(side_px, references=2), {"references": 1})
        if abilities.mask and shown.name != "a mask":
            yield Probe("a mask", self._job(side_px, references=1, mask=True), {"mask": False})
        if abilities.negative_prompt:
            sampling = replace(shown.job.sampling, negative_prompt="blurred")
            yield Probe("a negative prompt", replace(shown.job, sampling=sampling), {"negative_prompt": False})
        three_steps = replace(shown.job, sampling=replace(shown.job.sampling, steps=3))
        yield Probe("another number of steps", three_steps, {"any_steps": False})
        if abilities.second_pass:
            yield Probe("a second pass", self._two_passes(shown.job), {"second_pass": False})

    @property
    def _native_px(self) -> int:
        return self.multiple_px * max(1, round(math.sqrt(self.spec.native_area_px) / self.multiple_px))

    @property
    def _side_px(self) -> int:
        """A quarter of the native side, in which most checkpoints still draw something."""
        return min(self._native_px, self.multiple_px * max(MIN_SIDE, self._native_px // self.multiple_px // 4))

    def _two_passes(self, shown: ImageJob) -> ImageJob:
        """The smallest picture with a second pass, when its height is the native side."""
        height_px = width_px = shown.height_px
        checkpoint = replace(shown.checkpoint, max_area_px=height_px**2)
        while plan_picture(checkpoint, width_px, height_px, self.multiple_px).finish != "refine":
            width_px += self.multiple_px
        return replace(shown, checkpoint=checkpoint, width_px=width_px)

    def _job(self, side_px: int, *, references: int = 0, mask: bool = False) -> ImageJob:
        """A square in two steps; the first one includes what is built and allocated only once."""
        return ImageJob(
            id="probe",
            checkpoint=replace(self.spec, native_area_px=side_px**2),  # else it would be drawn larger and downscaled
            prompt=PROMPT,
            sampling=self.spec.sampling.resolve(steps=2),
            width_px=side_px,
            height_px=side_px,
            n=1,
            seed=0,
            references=(_gradient(side_px),) * references,
            mask=_left_half(side_px) if mask else None,
            encoding=Encoding(),
            metadata={},
            time_limit_s=3600,
        )


def _withdraw(abilities: Abilities, probe: Probe, reason: str) -> Abilities:
    return replace(abilities, **probe.without, withdrawn=(*abilities.withdrawn, f"{probe.name}: {reason}"))


def _gradient(side_px: int) -> Picture:
    ramp = bytes(255 * x // side_px for x in range(side_px) for _ in range(3))
    return Picture(side_px, side_px, "RGB", ramp * side_px)


def _left_half(side_px: int) -> Picture:
    """A mask that repaints the left half."""
    return Picture(side_px, side_px, "L", (b"\xff" * (side_px // 2) + b"\0" * (side_px - side_px // 2)) * side_px)
