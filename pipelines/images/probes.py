"""The pictures that a checkpoint draws before it serves: one that measures its speed, and one for each ability.

What a class announces may still break on its weights, or in diffusers itself. So each ability is tried at the smallest
size, and one that fails is withdrawn: its callers get a 400 that names the field, not a failed call.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.catalog.plan import in_own_steps, plan_picture
from pipelines.images.control_probes import ControlProber, Draw, difference, is_plain
from pipelines.protocol.images import CheckpointSpec, EncodedImage, Encoding, ImageJob, Picture
from pipelines.protocol.messages import Abilities, ControlledWith, Withdrawn

MIN_SIDE: Final = 4  # in multiples of multiple_px
PROMPT: Final = "a red house on green grass under a blue sky"
LONG_PROMPT: Final = ", and ".join([PROMPT] * 120)  # 1500 tokens or more
TWO_PASSES: Final = "a second pass"
REFERENCE: Final = "a reference"
MASK: Final = "a mask"
AT_ONCE: Final = "two pictures at once"
ROUNDING: Final = 4.0  # of 255, the mean by which sharing passes may change a picture in low precision
MAX_ADAPTERS: Final = 16  # that are tried: each is loaded
Pictures = tuple[EncodedImage, ...]


class Probe(NamedTuple):
    """A picture to try while `needs` is true of the abilities. `without` is what is withdrawn if it fails."""

    name: str
    job: ImageJob
    without: Mapping[str, Any]  # fields of Abilities
    needs: Callable[[Abilities], bool] = lambda _: True


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
            drawn = await self.draw(probe.job)
            if not isinstance(drawn, str):
                break
            abilities = _withdraw(abilities, probe, drawn)
        else:
            reason = abilities.withdrawn[0].why if abilities.withdrawn else "it has no pipeline"
            raise CheckpointError(f"{self.spec.path} loads and does not draw: {reason}")
        small = self._first(abilities, native=False) or probe
        reference = await self.draw(small.job) if warmup_native else drawn
        if isinstance(reference, str):
            raise CheckpointError(f"{self.spec.path} loads and does not draw {small.job.width_px} px: {reference}")
        abilities, short = await self._try_one_step(abilities, small.job)
        for other in self._others(small, short):
            if other.name != probe.name and other.needs(abilities):
                drawn = await self.draw(other.job)
                if isinstance(drawn, str):
                    abilities = _withdraw(abilities, other, drawn)
        abilities = await self._try_guidance(abilities, small.job, reference)
        abilities = await self._try_two_passes(abilities, short)
        abilities = await self._try_long_prompt(abilities, short)
        abilities = await self._try_two(abilities, small.job, reference[0])
        abilities = await self._try_two_edits(abilities, small, short)
        abilities = await self._try_adapters(await self._try_schedulers(abilities, short), short)
        return await ControlProber(self.spec, self.draw, reference, small.job, self._job_with).find(abilities)

    def _job_with(self, way: ControlledWith) -> ImageJob:
        return self._job(self._side_px, references=int(way != "text"), mask=way == "mask")

    async def _try_one_step(self, abilities: Abilities, job: ImageJob) -> tuple[Abilities, ImageJob]:
        """Another number of steps than the first picture's, and the job for what one step shows as well as two: the
        same in one step, if that gives a picture: some schedules divide by zero in it."""
        one, three = (replace(job, sampling=replace(job.sampling, steps=steps)) for steps in (1, 3))
        drawn = await self.draw(one)
        if not isinstance(drawn, str) and not is_plain(drawn[0]):
            return abilities, one
        if isinstance(failed := await self.draw(three), str):
            abilities = _withdraw(abilities, Probe("another number of steps", three, {"any_steps": False}), failed)
        return abilities, job

    async def _try_guidance(self, abilities: Abilities, job: ImageJob, before: Pictures) -> Abilities:
        """Much guidance, then a negative prompt with it: each must change the picture, which is `before` at first. In
        two steps, since they may act in one alone."""
        if abilities.guidance:
            much = _guided(job, 2 * job.sampling.guidance + 3)
            drawn = await self.draw(much)
            failed = drawn if isinstance(drawn, str) else _differs(before, drawn)
            if failed is not None:
                abilities = _withdraw(abilities, Probe("guidance", much, {"guidance": False}), failed)
            elif not isinstance(drawn, str):
                job, before = much, drawn
        return await self._try_negative_prompt(abilities, job, before) if abilities.negative_prompt else abilities

    async def _try_negative_prompt(self, abilities: Abilities, job: ImageJob, before: Pictures) -> Abilities:
        """With the job's guidance, and with little: most pipelines compute its part of a step at a guidance above 1
        only, some at any above 0."""
        drawn = await self.draw(_negated(job))
        failed = drawn if isinstance(drawn, str) else _differs(before, drawn)
        if failed is not None:
            return _withdraw(abilities, Probe("a negative prompt", job, {"negative_prompt": False}), failed)
        if not abilities.guidance:
            return abilities
        little = _guided(job, 0.5)
        without, negated = await self.draw(little), await self.draw(_negated(little))
        works = not isinstance(without, str) and not isinstance(negated, str) and _differs(without, negated) is None
        return replace(abilities, negative_prompt_above=0.0 if works else 1.0)

    async def _try_two_passes(self, abilities: Abilities, job: ImageJob) -> Abilities:
        """A larger picture, whose second pass takes some of a checkpoint's own steps if it can't take others."""
        probe = Probe(TWO_PASSES, self._two_passes(abilities, job), {"second_pass": False})
        drawn = await self.draw(probe.job) if abilities.second_pass else ()
        return _withdraw(abilities, probe, drawn) if isinstance(drawn, str) else abilities

    async def _try_long_prompt(self, abilities: Abilities, job: ImageJob) -> Abilities:
        """One that is longer than any class reads: in windows, or up to the longest that the class lets through, which
        the denoiser need not take."""
        if "chunk" not in abilities.long_prompts:
            return abilities
        long = replace(job, prompt=LONG_PROMPT, sampling=replace(job.sampling, long_prompt="chunk"))
        drawn = await self.draw(long)
        if not isinstance(drawn, str):
            return abilities
        return _withdraw(abilities, Probe("all of a long prompt", long, {"long_prompts": ("refuse", "tell")}), drawn)

    async def _try_two(self, abilities: Abilities, job: ImageJob, alone: EncodedImage) -> Abilities:
        """Two pictures at once, which share forward passes. Each must be much nearer to what it is alone than to the
        other: a pipeline may keep state that all its runs share, such as the seed of torch's global generator. `alone`
        is the job's picture. An error need not be the same again, so it counts too.
        """
        probe = Probe(AT_ONCE, job, {"at_once": False})
        other = await self.draw(replace(job, seed=job.seed + 1))
        if isinstance(other, str):
            return _withdraw(abilities, probe, other)
        both = await self.draw(replace(job, n=2))
        if isinstance(both, str):
            return _withdraw(abilities, probe, both)
        pairs = zip(both, (alone, other[0]), strict=True)
        apart = max(difference(one, expected) for one, expected in pairs)
        if apart > max(ROUNDING, difference(alone, other[0]) / 4):
            return _withdraw(abilities, probe, f"they are not what each is alone: {apart:.0f} of 255 apart")
        return abilities

    async def _try_two_edits(self, abilities: Abilities, first: Probe, short: ImageJob) -> Abilities:
        """Two at once from a reference, and two with a mask: these encode a picture beside another run's passes. What
        sharing passes does to a picture is known from the first kind; here an error counts."""
        for other in self._others(first, short):
            if other.name in {REFERENCE, MASK} - {first.name} and other.needs(abilities) and abilities.at_once:
                drawn = await self.draw(replace(other.job, n=2))
                if isinstance(drawn, str):
                    why = f"with {other.name}: {drawn}"
                    abilities = _withdraw(abilities, Probe(AT_ONCE, other.job, {"at_once": False}), why)
        return abilities

    async def _try_schedulers(self, abilities: Abilities, job: ImageJob) -> Abilities:
        """Each scheduler that requests may choose."""
        for name in self.spec.schedulers:
            drawn = await self.draw(replace(job, sampling=replace(job.sampling, scheduler=name)))
            if isinstance(drawn, str):
                without = {"unfit_schedulers": (*abilities.unfit_schedulers, name)}
                abilities = _withdraw(abilities, Probe(f"the scheduler {name}", job, without), drawn)
        return abilities

    async def _try_adapters(self, abilities: Abilities, job: ImageJob) -> Abilities:
        """Each adapter that requests may name. Raises CheckpointError if there are some and none fits."""
        folder = self.spec.runtime.lora_folder
        files = sorted(folder.glob("*.safetensors")) if folder is not None else []
        failures: dict[str, str] = {}
        for file in files[:MAX_ADAPTERS]:
            drawn = await self.draw(replace(job, sampling=replace(job.sampling, loras=((file.stem, 1.0),))))
            if isinstance(drawn, str):
                failures[file.stem] = drawn
        if files and len(failures) == len(files):
            name, reason = next(iter(failures.items()))
            raise CheckpointError(
                f"runtime.lora_folder: no adapter in {folder} fits {self.spec.path}: {name}: {reason}"
            )
        withdrawn = (*abilities.withdrawn, *(Withdrawn(f"the adapter {name}", why) for name, why in failures.items()))
        return replace(abilities, unfit_adapters=tuple(failures), withdrawn=withdrawn)

    def first_picture(self, abilities: Abilities, *, native: bool) -> ImageJob | None:
        """The one that begins, from what has these abilities. None if there is none."""
        first = self._first(abilities, native=native)
        return first.job if first is not None else None

    def compiled_shapes(self, abilities: Abilities, *, refined: bool) -> Iterator[ImageJob]:
        """Pictures whose shapes would each be compiled while calls wait: at the native size, of one row and of two
        (more rows take the code of two), and with the second pass if its models have one.
        """
        first = self._first(abilities, native=True)
        if first is None:
            return
        yield first.job
        yield replace(first.job, n=2)
        if refined and abilities.second_pass:
            yield self._two_passes(abilities, first.job)

    def _first(self, abilities: Abilities, *, native: bool) -> Probe | None:
        side_px = self._native_px if native else self._side_px
        if abilities.text:
            return Probe("text", self._job(side_px), {"text": False})
        if abilities.references:
            return Probe(REFERENCE, self._job(side_px, references=1), {"references": 0})
        if abilities.mask:
            return Probe(MASK, self._job(side_px, references=1, mask=True), {"mask": False})
        return None

    def _others(self, first: Probe, short: ImageJob) -> Iterator[Probe]:
        """`short` is the first picture in as few steps as it is drawn in. The other shape has two: the second is
        timed."""
        side_px, steps = self._side_px, short.sampling.steps
        one, two = (self._job(side_px, references=count, steps=steps) for count in (1, 2))
        masked = self._job(side_px, references=1, mask=True, steps=steps)
        yield Probe(REFERENCE, one, {"references": 0}, lambda has: has.references > 0)
        yield Probe("two references", two, {"references": 1}, lambda has: has.references > 1)
        yield Probe(MASK, masked, {"mask": False}, lambda has: has.mask)
        yield Probe("a picture that is no square", self._wide(first.job), {"any_ratio": False})

    @property
    def _native_px(self) -> int:
        return self.multiple_px * max(1, round(math.sqrt(self.spec.native_area_px) / self.multiple_px))

    @property
    def _side_px(self) -> int:
        """A quarter of the native side, in which most checkpoints still draw something."""
        return min(self._native_px, self.multiple_px * max(MIN_SIDE, self._native_px // self.multiple_px // 4))

    def _wide(self, job: ImageJob) -> ImageJob:
        """Wider by half, to an odd number of multiples, in the same area as far as the plan goes."""
        width_px = self.multiple_px * (job.width_px // self.multiple_px * 3 // 2 | 1)
        area_px = width_px * job.height_px
        checkpoint = replace(job.checkpoint, native_area_px=area_px, max_area_px=area_px)
        return replace(job, checkpoint=checkpoint, width_px=width_px)

    def _two_passes(self, abilities: Abilities, shown: ImageJob) -> ImageJob:
        """The smallest picture with a second pass, when its height is the native side. Also of a checkpoint whose
        larger pictures are only scaled: abilities are those of its weights."""
        height_px = width_px = shown.height_px
        checkpoint = replace(shown.checkpoint, max_area_px=height_px**2, enlarge="redraw")
        while plan_picture(checkpoint, width_px, height_px, self.multiple_px).finish != "refine":
            width_px += self.multiple_px
        sampling = shown.sampling if abilities.any_steps else in_own_steps(shown.sampling)
        return replace(shown, checkpoint=checkpoint, sampling=sampling, width_px=width_px)

    def _job(self, side_px: int, *, references: int = 0, mask: bool = False, steps: int = 2) -> ImageJob:
        """A square. The first of its steps includes what is built and allocated only once."""
        return ImageJob(
            id="probe",
            checkpoint=replace(self.spec, native_area_px=side_px**2),  # else it would be drawn larger and downscaled
            prompt=PROMPT,
            sampling=self.spec.sampling.resolve(steps=steps),
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
    return replace(abilities, **probe.without, withdrawn=(*abilities.withdrawn, Withdrawn(probe.name, reason)))


def _guided(job: ImageJob, scale: float) -> ImageJob:
    return replace(job, sampling=replace(job.sampling, guidance=scale))


def _negated(job: ImageJob) -> ImageJob:
    """With another negative prompt, beside the catalog file's."""
    return replace(
        job, sampling=replace(job.sampling, negative_prompt=f"{job.sampling.negative_prompt} blurred".strip())
    )


def _differs(before: Pictures, drawn: Pictures) -> str | None:
    return None if difference(before[0], drawn[0]) > 0 else "it changes nothing"


def _gradient(side_px: int) -> Picture:
    ramp = bytes(255 * x // side_px for x in range(side_px) for _ in range(3))
    return Picture(side_px, side_px, "RGB", ramp * side_px)


def _left_half(side_px: int) -> Picture:
    """A mask that repaints the left half."""
    return Picture(side_px, side_px, "L", (b"\xff" * (side_px // 2) + b"\0" * (side_px - side_px // 2)) * side_px)
