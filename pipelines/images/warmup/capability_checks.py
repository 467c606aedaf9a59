"""What warmup finds of a checkpoint before it serves: one picture that measures its speed, and one for each ability.

What a class announces may still break on its weights, or in diffusers itself. So each ability is tried at the smallest
size, and one that fails is withdrawn: its callers get a 400 that names the field, not a failed call. Fails, too, what
draws no picture (NaN, or one colour), and what changes nothing in it.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.images.drawing.looks import NO_CHANGE, NOT_NUMBERS, ONE_COLOUR, difference, is_plain
from pipelines.images.warmup.check_jobs import (
    MASK,
    OTHER_PROMPT,
    PROMPT,
    REFERENCE,
    TEXT,
    TWO_PASSES,
    TWO_REFERENCES,
    Check,
    CheckJobs,
    again,
    guided,
    negated,
    painted,
    with_other_second,
)
from pipelines.images.warmup.control_checks import ControlChecker, Draw
from pipelines.protocol.images import CheckpointSpec, EncodedImage, ImageJob
from pipelines.protocol.messages import Abilities, Withdrawn

A_PROMPT: Final = "a prompt"
LONG_PROMPT: Final = ", and ".join([PROMPT] * 120)  # 1500 tokens or more
AT_ONCE: Final = "two pictures at once"
ROUNDING: Final = 4.0  # of 255, the mean by which sharing passes may change a picture in low precision
Pictures = tuple[EncodedImage, ...]


class Shown(NamedTuple):
    """Pictures that show something, and the job that drew them."""

    job: ImageJob
    pictures: Pictures


@dataclass(frozen=True, slots=True)
class CapabilityChecker:
    """Tries a checkpoint. `draw` gives each job an id of its own."""

    spec: CheckpointSpec
    multiple_px: int
    draw: Draw

    @property
    def jobs(self) -> CheckJobs:
        """Return what makes the jobs."""
        return CheckJobs(self.spec, self.multiple_px)

    async def find_abilities(self, announced: Abilities, *, warmup_native: bool) -> Abilities:
        """Return the abilities that work. The first picture is drawn from text, or else from a reference, or from one
        with a mask; it has the native size if `warmup_native`. Raises CheckpointError if none of them is drawn."""
        abilities, check, first = await self._find_first(announced, native=warmup_native)
        small = await self._look_small(abilities, first) if warmup_native else first
        abilities, shown = await self._try_one_step(abilities, small)
        abilities = await self._try_prompt(abilities, shown, small)
        short = shown.job
        abilities = await self._try_inputs(abilities, check, small.job, shown)
        abilities = await self._try_guidance(abilities, small)
        abilities = await self._try_two_passes(abilities, short)
        abilities = await self._try_long_prompt(abilities, short)
        abilities = await self._try_two(abilities, small.job, small.pictures[0])
        abilities = await self._try_two_edits(abilities, check, small.job, short)
        abilities = await self._try_schedulers(abilities, short)
        steps = small.job.sampling.steps
        return await ControlChecker(
            self.spec, self._pictures, small.pictures, small.job, lambda way: self.jobs.with_way(way, steps)
        ).find(abilities)

    async def look(self, job: ImageJob) -> Shown | str:
        """Draw, and return the pictures, or why they show nothing. Where they do not, more steps and other noise are
        tried: in very few, some schedules divide by zero."""
        drawn = await self.draw(job)
        why = _fault(job, drawn)
        if why is None and not isinstance(drawn, str):
            return Shown(job, drawn)
        is_blank = why is None or why == ONE_COLOUR or why.startswith(NOT_NUMBERS)
        for other in again(job) if is_blank else ():
            drawn = await self.draw(other)
            if not isinstance(drawn, str) and _fault(other, drawn) is None:
                return Shown(other, drawn)
        return why or ONE_COLOUR

    async def draws_first(self, abilities: Abilities, *, native: bool) -> bool:
        """Whether the picture that begins shows something."""
        first = self.jobs.first(abilities, native=native)
        return first is not None and not isinstance(await self.look(first.job), str)

    async def _pictures(self, job: ImageJob) -> Pictures | str:
        shown = await self.look(job)
        return shown if isinstance(shown, str) else shown.pictures

    async def _find_first(self, announced: Abilities, *, native: bool) -> tuple[Abilities, Check, Shown]:
        abilities = announced
        while (check := self.jobs.first(abilities, native=native)) is not None:
            shown = await self.look(check.job)
            if not isinstance(shown, str):
                return abilities, check, shown
            abilities = _withdraw(abilities, check, shown)
        reason = abilities.withdrawn[0].why if abilities.withdrawn else "it has no pipeline"
        if reason == ONE_COLOUR:
            reason = f"{reason}; its weights may be damaged, or stored in a form that is not known here"
        raise CheckpointError(f"{self.spec.path} loads and does not draw: {reason}")

    async def _look_small(self, abilities: Abilities, first: Shown) -> Shown:
        check = self.jobs.first(abilities, native=False)
        job = first.job if check is None else check.job
        shown = await self.look(job)
        if isinstance(shown, str):
            raise CheckpointError(f"{self.spec.path} loads and does not draw {job.width_px} px: {shown}")
        return shown

    async def _try_one_step(self, abilities: Abilities, shown: Shown) -> tuple[Abilities, Shown]:
        """Another number of steps than the first picture's, and the picture for what one step shows as well as two: the
        same in one step, if that gives a picture."""
        job = shown.job
        counts = (1, job.sampling.steps + 1)
        one, more = (replace(job, sampling=replace(job.sampling, steps=steps)) for steps in counts)
        drawn = await self.draw(one)
        if not isinstance(drawn, str) and _fault(one, drawn) is None:
            return abilities, Shown(one, drawn)
        if isinstance(failed := await self.look(more), str):
            abilities = _withdraw(abilities, Check("another number of steps", more, {"any_steps": False}), failed)
        return abilities, shown

    async def _try_prompt(self, abilities: Abilities, *pictures: Shown) -> Abilities:
        """Another prompt must change one of the pictures. Raises CheckpointError if it does not, and the checkpoint
        draws from prompts alone."""
        why = NO_CHANGE if abilities.prompt else "it takes none"
        for shown in pictures if abilities.prompt else ():
            changed = await self._change(replace(shown.job, prompt=OTHER_PROMPT), shown.pictures)
            if not isinstance(changed, str):
                return abilities
            why = changed
        if not (abilities.references or abilities.mask):
            raise CheckpointError(
                f"{self.spec.path} loads and does not draw what a prompt says: {why}; "
                "the weights of its text encoder may be damaged"
            )
        return _withdraw(abilities, Check(A_PROMPT, pictures[0].job, {"prompt": False, "text": False}), why)

    async def _change(self, job: ImageJob, before: Pictures) -> Shown | str:
        """The pictures of the job, which must not be those before it."""
        shown = await self.look(job)
        if not isinstance(shown, str) and shown.job is job and difference(before[0], shown.pictures[0]) == 0:
            return NO_CHANGE
        return shown

    async def _try_inputs(self, abilities: Abilities, first: Check, job: ImageJob, short: Shown) -> Abilities:
        """References, a mask and another shape. `short` is the first picture in as few steps as these."""
        for check in self.jobs.others(job, short.job):
            if check.name == first.name or not check.needs(abilities):
                continue
            if check.name == REFERENCE and first.name == TEXT:
                shown = await self._change(check.job, short.pictures)
            else:
                shown = await self.look(check.job)
            if check.name == TWO_REFERENCES and not isinstance(shown, str):
                shown = await self._change(with_other_second(shown.job), shown.pictures)
                shown = "the second changes nothing" if shown == NO_CHANGE else shown
            if isinstance(shown, str):
                abilities = _withdraw(abilities, check, shown)
        return abilities

    async def _try_guidance(self, abilities: Abilities, before: Shown) -> Abilities:
        """Much guidance, then a negative prompt with it: each must change the picture, which is `before` at first. In
        two steps, since they may act in one alone."""
        if abilities.guidance:
            much = guided(before.job, 2 * before.job.sampling.guidance + 3)
            shown = await self._change(much, before.pictures)
            if isinstance(shown, str):
                abilities = _withdraw(abilities, Check("guidance", much, {"guidance": False}), shown)
            else:
                before = shown
        return await self._try_negative_prompt(abilities, before) if abilities.negative_prompt else abilities

    async def _try_negative_prompt(self, abilities: Abilities, before: Shown) -> Abilities:
        """With the job's guidance, and with little: most pipelines compute its part of a step at a guidance above 1
        only, some at any above 0."""
        job = before.job
        shown = await self._change(negated(job), before.pictures)
        if isinstance(shown, str):
            return _withdraw(abilities, Check("a negative prompt", job, {"negative_prompt": False}), shown)
        if not abilities.guidance:
            return abilities
        little = await self.look(guided(job, 0.5))
        works = not isinstance(little, str) and not isinstance(
            await self._change(negated(little.job), little.pictures), str
        )
        return replace(abilities, negative_prompt_above=0.0 if works else 1.0)

    async def _try_two_passes(self, abilities: Abilities, job: ImageJob) -> Abilities:
        """A larger picture, whose second pass takes some of a checkpoint's own steps if it can't take others."""
        if not abilities.second_pass:
            return abilities
        check = Check(TWO_PASSES, self.jobs.two_passes(abilities, job), {"second_pass": False})
        shown = await self.look(check.job)
        return _withdraw(abilities, check, shown) if isinstance(shown, str) else abilities

    async def _try_long_prompt(self, abilities: Abilities, job: ImageJob) -> Abilities:
        """One that is longer than any class reads: in windows, or up to the longest that the class lets through, which
        the denoiser need not take."""
        if "chunk" not in abilities.long_prompts:
            return abilities
        long = replace(job, prompt=LONG_PROMPT, sampling=replace(job.sampling, long_prompt="chunk"))
        shown = await self.look(long)
        if not isinstance(shown, str):
            return abilities
        return _withdraw(abilities, Check("all of a long prompt", long, {"long_prompts": ("refuse", "tell")}), shown)

    async def _try_two(self, abilities: Abilities, job: ImageJob, alone: EncodedImage) -> Abilities:
        """Two pictures at once, which share forward passes. Each must be much nearer to what it is alone than to the
        other: a pipeline may keep state that all its runs share, such as the seed of torch's global generator. `alone`
        is the job's picture. An error need not be the same again, so it counts too.
        """
        check = Check(AT_ONCE, job, {"at_once": False})
        other = await self.draw(replace(job, seed=job.seed + 1))
        if isinstance(other, str):
            return _withdraw(abilities, check, other)
        both = await self.draw(replace(job, n=2))
        if isinstance(both, str):
            return _withdraw(abilities, check, both)
        pairs = zip(both, (alone, other[0]), strict=True)
        apart = max(difference(one, expected) for one, expected in pairs)
        if apart > max(ROUNDING, difference(alone, other[0]) / 4):
            return _withdraw(abilities, check, f"they are not what each is alone: {apart:.0f} of 255 apart")
        return abilities

    async def _try_two_edits(self, abilities: Abilities, first: Check, job: ImageJob, short: ImageJob) -> Abilities:
        """Two at once from a reference, and two with a mask: these encode a picture beside another run's passes. What
        sharing passes does to a picture is known from the first kind; here an error counts."""
        for other in self.jobs.others(job, short):
            if other.name in {REFERENCE, MASK} - {first.name} and other.needs(abilities) and abilities.at_once:
                drawn = await self._pictures(replace(other.job, n=2))
                if isinstance(drawn, str):
                    why = f"with {other.name}: {drawn}"
                    abilities = _withdraw(abilities, Check(AT_ONCE, other.job, {"at_once": False}), why)
        return abilities

    async def _try_schedulers(self, abilities: Abilities, job: ImageJob) -> Abilities:
        """Each scheduler that requests may choose."""
        for name in self.spec.schedulers:
            drawn = await self._pictures(replace(job, sampling=replace(job.sampling, scheduler=name)))
            if isinstance(drawn, str):
                without = {"unfit_schedulers": (*abilities.unfit_schedulers, name)}
                abilities = _withdraw(abilities, Check(f"the scheduler {name}", job, without), drawn)
        return abilities


def _withdraw(abilities: Abilities, check: Check, reason: str) -> Abilities:
    return replace(abilities, **check.without, withdrawn=(*abilities.withdrawn, Withdrawn(check.name, reason)))


def _fault(job: ImageJob, drawn: Pictures | str) -> str | None:
    """Return why a job's pictures show nothing, or were not drawn; None if they are fine."""
    if isinstance(drawn, str):
        return drawn
    return ONE_COLOUR if any(is_plain(picture, box) for picture in drawn for box in painted(job)) else None
