"""The calls that need what is tried while their checkpoint serves already: each waits for its check. Pure."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pipelines.checkpoints.work.estimate import GRID_PX
from pipelines.checkpoints.work.plan import plan_job
from pipelines.images.tasks import UnsupportedTask
from pipelines.images.warmup.check_jobs import (
    GUIDANCE,
    LONG,
    MASK,
    NEGATIVE_PROMPT,
    NOT_SQUARE,
    REFERENCE,
    TRANSPARENT,
    TWO_PASSES,
    TWO_REFERENCES,
    scheduler_check,
)
from pipelines.protocol.images import ImageJob
from pipelines.protocol.messages import Capabilities


class Need(NamedTuple):
    """What a job needs: the check of it, the request's field, and whether a checkpoint with these capabilities has
    it."""

    check: str
    param: str
    is_met: Callable[[Capabilities], bool]


def late_needs(job: ImageJob) -> Iterator[Need]:
    """Yield what a job needs beyond what every call does."""
    sampling, own = job.sampling, job.checkpoint.sampling
    shown = len(job.references) if job.sheet_from is None else min(len(job.references), job.sheet_from + 1)
    if job.mask is not None:
        yield Need(MASK, "mask", lambda has: has.mask)
    elif shown and not job.enlarges:
        yield Need(REFERENCE, "image", lambda has: has.references > 0)
    if shown > 1:
        yield Need(TWO_REFERENCES, "image", lambda has: has.references >= shown)
    if job.width_px != job.height_px and not job.enlarges:
        yield Need(NOT_SQUARE, "size", lambda has: has.any_ratio)
    if not job.checkpoint.refined and plan_job(job, GRID_PX).finish in {"refine", "enlarge"}:
        yield Need(TWO_PASSES, "scale" if job.enlarges else "size", lambda has: has.second_pass)
    if sampling.guidance != own.guidance:
        yield Need(GUIDANCE, "guidance", lambda has: has.guidance)
    if sampling.negative_prompt and sampling.negative_prompt != own.negative_prompt:
        yield Need(NEGATIVE_PROMPT, "negative_prompt", lambda has: _has_effect(has, sampling.guidance))
    if job.encoding.background == "transparent":
        yield Need(TRANSPARENT, "background", lambda has: has.transparent)
    if sampling.long_prompt == "chunk" != own.long_prompt:
        yield Need(LONG, "long_prompt", lambda has: "chunk" in has.long_prompts)
    if (name := sampling.scheduler) is not None and name != own.scheduler:
        yield Need(scheduler_check(name), "scheduler", lambda has: name not in has.unsupported_schedulers)


def _has_effect(has: Capabilities, guidance: float) -> bool:
    """Return whether a negative prompt changes an image of this guidance."""
    return has.negative_prompt and (has.negative_prompt_above is None or guidance > has.negative_prompt_above)


def why_unmet(job: ImageJob, has: Capabilities) -> UnsupportedTask | None:
    """Return what a job needs and its checkpoint lacks, by the check of it; None if it has all."""
    for need in late_needs(job):
        if not need.is_met(has):
            why = next((each.why for each in has.failed_checks if each.what == need.check), "it was tried and failed")
            return UnsupportedTask(f"{need.check}: {why}", need.param)
    return None
