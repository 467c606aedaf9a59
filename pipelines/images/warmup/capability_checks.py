"""The capability checks of a checkpoint before it serves: one image that measures its speed, and one for each
capability.

A capability that a class announces may still break on its weights, or in diffusers itself. So each capability is tried
at the smallest size, and one that fails is withdrawn: its callers get a 400 that names the field, not a failed call. A
check fails, too, if it draws no image (NaN, or one colour), or changes nothing in it.
"""

from collections.abc import AsyncIterator, Container
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.drawing.image_checks import (
    NO_CHANGE,
    NOT_NUMBERS,
    ONE_COLOUR,
    difference,
    is_single_colour,
    why_not_same,
)
from pipelines.images.warmup.check_jobs import (
    GUIDANCE,
    INPUTS,
    MASK,
    NEGATIVE_PROMPT,
    NOT_SQUARE,
    OPTIONS,
    OTHER_PROMPT,
    REFERENCE,
    TEXT,
    TWO_PASSES,
    TWO_REFERENCES,
    Check,
    CheckJobs,
    drawn_boxes,
    retry_jobs,
    scheduler_check,
    with_guidance,
    with_negative_prompt,
    with_second_rotated,
)
from pipelines.images.warmup.control_checks import ControlChecker, Draw
from pipelines.protocol.images import CheckpointSpec, EncodedImage, ImageJob
from pipelines.protocol.messages import Capabilities, FailedCheck

A_PROMPT: Final = "a prompt"
AT_ONCE: Final = "two images at once"
SAME_AGAIN: Final = "the same image from a seed"
ROUNDING: Final = 4.0  # of 255, the mean by which sharing passes may change an image in low precision
Images = tuple[EncodedImage, ...]


class ShownImages(NamedTuple):
    """Images that show something, and the job that drew them."""

    job: ImageJob
    images: Images


class FirstFound(NamedTuple):
    """What the first checks have shown: the capabilities, as far as they were tried, the check that was drawn first,
    and its image, small; then the same in as few steps as give one."""

    capabilities: Capabilities
    check: Check
    small: ShownImages
    short: ShownImages


@dataclass(frozen=True, slots=True)
class CapabilityChecker:
    """Tries a checkpoint. `draw` gives each job an id of its own."""

    spec: CheckpointSpec
    multiple_px: int
    draw: Draw

    @property
    def jobs(self) -> CheckJobs:
        """Return the builder of the jobs that try this checkpoint."""
        return CheckJobs(self.spec, self.multiple_px)

    async def find_capabilities(self, announced: Capabilities, *, warmup_native: bool) -> Capabilities:
        """Return the capabilities that work. Raises CheckpointError where the checkpoint can't serve."""
        first = await self.find_first(announced, warmup_native=warmup_native)
        found = [capabilities async for capabilities, _ in self.find_others(first)]
        return found[-1]

    async def find_first(self, announced: Capabilities, *, warmup_native: bool) -> FirstFound:
        """Try what every call needs, and what a checkpoint can't serve without: an image, which is another one for
        another prompt and the same one again. It is drawn from text, or else from a reference, or from one with a mask;
        it has the native size if `warmup_native`. Raises CheckpointError if none of them is drawn."""
        capabilities, check, first = await self._find_first(announced, native=warmup_native)
        if self.spec.conditioning == "upscale":
            return FirstFound(capabilities, check, first, first)
        small = await self._draw_small(capabilities, first) if warmup_native else first
        capabilities, short = await self._try_one_step(capabilities, small)
        capabilities = await self._try_again(capabilities, small)
        capabilities = await self._try_prompt(capabilities, short, small)
        if self.spec.refined:
            capabilities = await self._try_options(capabilities, short.job, needed=True)
        return FirstFound(capabilities, check, small, short)

    async def find_others(self, first: FirstFound) -> AsyncIterator[tuple[Capabilities, frozenset[str]]]:
        """Try what some calls need, and yield the capabilities with the checks that were tried since the last ones.
        Raises CheckpointError where the checkpoint can't serve."""
        capabilities, check, small, short = first
        if self.spec.conditioning == "upscale":
            yield await self._try_two(capabilities, small.job, small.images[0]), frozenset({AT_ONCE})
            return
        capabilities = await self._try_inputs(capabilities, {NOT_SQUARE}, check, small.job, short)
        yield capabilities, frozenset({NOT_SQUARE})
        capabilities = await self._try_two(capabilities, small.job, small.images[0])
        capabilities = await self._try_inputs(capabilities, INPUTS, check, small.job, short)
        yield capabilities, INPUTS
        capabilities = await self._try_two_edits(capabilities, check, small.job, short.job)
        yield capabilities, frozenset({AT_ONCE})
        capabilities = await self._try_guidance(capabilities, small)
        yield capabilities, frozenset({GUIDANCE, NEGATIVE_PROMPT})
        capabilities = await self._try_options(capabilities, short.job, needed=False)
        yield capabilities, OPTIONS
        capabilities = await self._try_schedulers(capabilities, small.job)
        yield capabilities, frozenset(scheduler_check(name) for name in self.spec.schedulers)
        steps = small.job.sampling.steps
        controls = ControlChecker(
            self.spec, self._images, small.images, small.job, lambda way: self.jobs.with_control(way, steps)
        )
        yield await controls.find(capabilities), frozenset()

    async def try_job(self, job: ImageJob) -> ShownImages | str:
        """Draw, and return the images, or why they show nothing. Where they do not, more steps and other noise are
        tried: in very few, some schedules divide by zero."""
        drawn = await self.draw(job)
        why = _why_invalid(job, drawn)
        if why is None and not isinstance(drawn, str):
            return ShownImages(job, drawn)
        is_blank = why is None or why == ONE_COLOUR or why.startswith(NOT_NUMBERS)
        for other in retry_jobs(job) if is_blank else ():
            drawn = await self.draw(other)
            if not isinstance(drawn, str) and _why_invalid(other, drawn) is None:
                return ShownImages(other, drawn)
        return why or ONE_COLOUR

    async def passes_first_check(self, capabilities: Capabilities, *, native: bool) -> bool:
        """Return whether the image that begins shows something."""
        first = self.jobs.first_check(capabilities, native=native)
        return first is not None and not isinstance(await self.try_job(first.job), str)

    async def _images(self, job: ImageJob) -> Images | str:
        shown = await self.try_job(job)
        return shown if isinstance(shown, str) else shown.images

    async def _find_first(self, announced: Capabilities, *, native: bool) -> tuple[Capabilities, Check, ShownImages]:
        capabilities = announced
        while (check := self.jobs.first_check(capabilities, native=native)) is not None:
            shown = await self.try_job(check.job)
            if not isinstance(shown, str):
                return capabilities, check, shown
            capabilities = _withdraw(capabilities, check.name, shown, **check.without)
        failed = dict.fromkeys(each.why for each in capabilities.failed_checks)  # once each
        reason = "; ".join(failed) or "it has no pipeline"
        if reason == ONE_COLOUR:
            reason = f"{reason}; its weights may be damaged, or stored in a form that is not known here"
        raise CheckpointError(f"{self.spec.path} loads and does not draw: {reason}")

    async def _draw_small(self, capabilities: Capabilities, first: ShownImages) -> ShownImages:
        check = self.jobs.first_check(capabilities, native=False)
        job = first.job if check is None else check.job
        shown = await self.try_job(job)
        if isinstance(shown, str):
            raise CheckpointError(f"{self.spec.path} loads and does not draw {job.width_px} px: {shown}")
        return shown

    async def _try_one_step(self, capabilities: Capabilities, shown: ShownImages) -> tuple[Capabilities, ShownImages]:
        """Try another number of steps than the first image's. Returns the image for checks that one step serves as well
        as two, too: the same in one step, if that gives an image."""
        job = shown.job
        counts = (1, job.sampling.steps + 1)
        one, more = (replace(job, sampling=replace(job.sampling, steps=steps)) for steps in counts)
        drawn = await self.draw(one)
        if not isinstance(drawn, str) and _why_invalid(one, drawn) is None:
            return capabilities, ShownImages(one, drawn)
        if isinstance(failed := await self.try_job(more), str):
            capabilities = _withdraw(capabilities, "another number of steps", failed, any_steps=False)
        return capabilities, shown

    async def _try_prompt(self, capabilities: Capabilities, *images: ShownImages) -> Capabilities:
        """Try another prompt, which must change one of the images. Raises CheckpointError if it does not, and the
        checkpoint draws from prompts alone."""
        why = NO_CHANGE if capabilities.prompt else "it takes none"
        for shown in images if capabilities.prompt else ():
            changed = await self._change(replace(shown.job, prompt=OTHER_PROMPT), shown.images)
            if not isinstance(changed, str):
                return capabilities
            why = changed
        if not (capabilities.references or capabilities.mask):
            raise CheckpointError(
                f"{self.spec.path} loads and does not draw what a prompt says: {why}; "
                "the weights of its text encoder may be damaged"
            )
        return _withdraw(capabilities, A_PROMPT, why, prompt=False, text=False)

    async def _change(self, job: ImageJob, before: Images) -> ShownImages | str:
        """Draw the images of the job, which must differ from those before it. Returns the reason if they don't."""
        shown = await self.try_job(job)
        if not isinstance(shown, str) and shown.job is job and difference(before[0], shown.images[0]) == 0:
            return NO_CHANGE
        return shown

    async def _try_inputs(
        self, capabilities: Capabilities, names: Container[str], first: Check, job: ImageJob, short: ShownImages
    ) -> Capabilities:
        """Try those of references, a mask and another shape that are named. `short` is the first image in as few steps
        as these."""
        for check in self.jobs.others(job, short.job):
            if check.name not in names or check.name == first.name or not check.needs(capabilities):
                continue
            if check.name == REFERENCE and first.name == TEXT:
                shown = await self._change(check.job, short.images)
            else:
                shown = await self.try_job(check.job)
            if check.name == TWO_REFERENCES and not isinstance(shown, str):
                shown = await self._change(with_second_rotated(shown.job), shown.images)
                shown = "the second changes nothing" if shown == NO_CHANGE else shown
            if isinstance(shown, str):
                capabilities = _withdraw(capabilities, check.name, shown, **check.without)
            elif check.name in {REFERENCE, MASK}:
                capabilities = await self._try_again(capabilities, shown, f"with {check.name}: ")
        return capabilities

    async def _try_again(self, capabilities: Capabilities, shown: ShownImages, when: str = "") -> Capabilities:
        """Draw the images again, of the same seed. `when` begins the reason if they are others."""
        why = await self._why_others(shown) if capabilities.reproducible else None
        return capabilities if why is None else _withdraw(capabilities, SAME_AGAIN, f"{when}{why}", reproducible=False)

    async def _why_others(self, shown: ShownImages) -> str | None:
        """Draw the images again, and return why they are not the same; None if they are. An error counts too."""
        again = await self.draw(shown.job)
        return again if isinstance(again, str) else why_not_same(shown.images, again)

    async def _try_guidance(self, capabilities: Capabilities, before: ShownImages) -> Capabilities:
        """Try much guidance, then a negative prompt with it: each must change the image, which is `before` at first. In
        two steps, since they may act in one alone."""
        if capabilities.guidance:
            much = with_guidance(before.job, 2 * before.job.sampling.guidance + 3)
            shown = await self._change(much, before.images)
            if isinstance(shown, str):
                capabilities = _withdraw(capabilities, GUIDANCE, shown, guidance=False)
            else:
                before = shown
        return await self._try_negative_prompt(capabilities, before) if capabilities.negative_prompt else capabilities

    async def _try_negative_prompt(self, capabilities: Capabilities, before: ShownImages) -> Capabilities:
        """Try a negative prompt with the job's guidance, and with little: most pipelines compute its part of a step at
        a guidance above 1 only, some at any above 0."""
        job = before.job
        shown = await self._change(with_negative_prompt(job), before.images)
        if isinstance(shown, str):
            return _withdraw(capabilities, NEGATIVE_PROMPT, shown, negative_prompt=False)
        if not capabilities.guidance:
            return capabilities
        little = await self.try_job(with_guidance(job, 0.5))
        works = not isinstance(little, str) and not isinstance(
            await self._change(with_negative_prompt(little.job), little.images), str
        )
        return replace(capabilities, negative_prompt_above=0.0 if works else 1.0)

    async def _try_two(self, capabilities: Capabilities, job: ImageJob, alone: EncodedImage) -> Capabilities:
        """Try two images at once, which share forward passes. Each must be much nearer to the same image drawn alone
        than to the other: a pipeline may keep state that all its runs share, such as the seed of torch's global
        generator. `alone` is the job's image. An error need not be the same again, so it counts too."""
        if not capabilities.at_once:
            return capabilities
        other = await self.draw(replace(job, seed=job.seed + 1))
        if isinstance(other, str):
            return _withdraw(capabilities, AT_ONCE, other, at_once=False)
        both = await self.draw(replace(job, n=2))
        if isinstance(both, str):
            return _withdraw(capabilities, AT_ONCE, both, at_once=False)
        pairs = zip(both, (alone, other[0]), strict=True)
        apart = max(difference(one, expected) for one, expected in pairs)
        if apart > max(ROUNDING, difference(alone, other[0]) / 4):
            why = f"they are not what each is alone: {apart:.0f} of 255 apart"
            return _withdraw(capabilities, AT_ONCE, why, at_once=False)
        return capabilities

    async def _try_two_edits(
        self, capabilities: Capabilities, first: Check, job: ImageJob, short: ImageJob
    ) -> Capabilities:
        """Try two images at once from a reference, and two with a mask: these encode an image beside another run's
        passes. The first kind has shown how shared passes change an image; here an error counts."""
        for other in self.jobs.others(job, short):
            if other.name in {REFERENCE, MASK} - {first.name} and other.needs(capabilities) and capabilities.at_once:
                drawn = await self._images(replace(other.job, n=2))
                if isinstance(drawn, str):
                    capabilities = _withdraw(capabilities, AT_ONCE, f"with {other.name}: {drawn}", at_once=False)
        return capabilities

    async def _try_options(self, capabilities: Capabilities, job: ImageJob, *, needed: bool) -> Capabilities:
        """Try what else a call may ask for: with `needed` the second pass of models that can't serve without it, else
        all others."""
        for option in self.jobs.options(capabilities, job):
            if needed != (self.spec.refined and option.name == TWO_PASSES):
                continue
            if isinstance(failed := await self.try_job(option.job), str):
                capabilities = _withdraw(capabilities, option.name, failed, **option.without)
        return capabilities

    async def _try_schedulers(self, capabilities: Capabilities, job: ImageJob) -> Capabilities:
        """Try each scheduler that requests may choose, twice: where the checkpoint's own gives the same image from a
        seed, so must each of them. In two steps, since some add no noise in the last."""
        for name in self.spec.schedulers:
            shown = await self.try_job(replace(job, sampling=replace(job.sampling, scheduler=name)))
            if isinstance(shown, str):
                why: str | None = shown
            else:
                why = await self._why_others(shown) if capabilities.reproducible else None
            if why is not None:
                unsupported = (*capabilities.unsupported_schedulers, name)
                capabilities = _withdraw(capabilities, scheduler_check(name), why, unsupported_schedulers=unsupported)
        return capabilities


def _withdraw(capabilities: Capabilities, what: str, why: str, **without: Any) -> Capabilities:
    """Return the capabilities with these values, since `what` was tried and failed."""
    return replace(capabilities, **without, failed_checks=(*capabilities.failed_checks, FailedCheck(what, why)))


def _why_invalid(job: ImageJob, drawn: Images | str) -> str | None:
    """Return why a job's images show nothing, or were not drawn; None if they are fine."""
    if isinstance(drawn, str):
        return drawn
    return ONE_COLOUR if any(is_single_colour(image, box) for image in drawn for box in drawn_boxes(job)) else None
