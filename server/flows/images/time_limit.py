"""Calls that can't end within the time limit are not begun: they would hold the device up to the limit, for nothing."""

from typing import Final

from pipelines.protocol.images import ImageJob
from server.errors import BadRequest

SETTING: Final = "DARKROOM_JOB_TIME_LIMIT_S"


def check_time(job: ImageJob, least_s: float | None) -> None:
    """Refuse a job that can't end in time. `least_s` is the least device time that it may take, None where none is
    known. Raises BadRequest, which says which job would end in time: a retry does not."""
    if least_s is None or least_s <= job.time_limit_s:
        return
    param, remedy = _remedy(job, job.time_limit_s / least_s)
    raise BadRequest(
        f"This call can't end in time: by what this model has taken before, it takes {least_s:.0f} s of device time or "
        f"more, and the limit is {job.time_limit_s:g} s. {remedy} This server's operator sets the limit ({SETTING}).",
        param=param,
        code="exceeds_time_limit",
    )


def _remedy(job: ImageJob, share: float) -> tuple[str, str]:
    """Return the field to change, and the advice for it, so that the work shrinks to this share of itself."""
    if images := int(job.n * share):
        return "n", f"Ask for {_at_most(images, 'image')} in a call."
    steps = int(job.n * job.sampling.steps * share)
    one = " and one image" if job.n > 1 else ""
    if steps:
        return "steps", f"Ask for {_at_most(steps, 'step')}{one}, or for a smaller size."
    return "size", f"Ask for a smaller size{one}, or for another model."


def _at_most(number: int, what: str) -> str:
    return f"at most {number} {what}{'s' if number > 1 else ''}"
