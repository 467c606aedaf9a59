"""From an exception to the last event of a failed image job."""

import traceback
from dataclasses import replace

from pipelines.checkpoints.errors import CheckpointError, MemoryTaken, spread_retry_s
from pipelines.device.failures import Cancelled, OutOfTime, is_out_of_memory
from pipelines.images.drawing.image_checks import InvalidImage
from pipelines.images.loading.safety_checker import BlockedImage
from pipelines.images.prompts.reading import PromptTooLong
from pipelines.images.tasks import UnsupportedTask
from pipelines.protocol.finished_image import WrongSize
from pipelines.protocol.images import Failed, ImageJob
from pipelines.protocol.pixels import NoTransparency


def to_failed_event(error: BaseException, job: ImageJob) -> Failed:
    """Translate an error into the job's last event. `message` is for the caller, `detail` for the log."""
    detail = "".join(traceback.format_exception(error))
    match error:
        case Cancelled():
            return Failed("cancelled", "The job was cancelled; nothing was charged.")
        case OutOfTime():
            message = (
                f"The job ran past the time limit of {job.time_limit_s:g} s {error}; nothing was charged. Ask for "
                "fewer steps, a smaller size or fewer images; this server's operator sets the limit "
                "(DARKROOM_JOB_TIME_LIMIT_S)."
            )
            return Failed("timed_out", message)
        case UnsupportedTask():
            return Failed("unsupported", f"This model's checkpoint can't do that: {error}.", detail, error.param)
        case NoTransparency():
            message = f"This model's checkpoint can't do that: {error}. Nothing was charged. Leave 'background' out."
            return Failed("unsupported", message, detail, "background")
        case PromptTooLong():
            message = (
                f"{error}. Nothing was charged. Shorten it, or send 'long_prompt': 'tell' for an image of what fits; "
                "the model's `long_prompts` in /v1/models say what else it can do."
            )
            return Failed("prompt_too_long", message, detail, error.field, read_part=error.read_part)
        case MemoryTaken():
            message = "Other programs have the memory that this model needs; nothing was charged. Try again later."
            return Failed("memory_taken", message, detail, retry_after_s=spread_retry_s())
        case CheckpointError():
            return _checkpoint_failed(job, detail)
        case BlockedImage():
            message = "This model's checkpoint has a safety checker of its own, which blocked the image"
            return Failed("moderation_blocked", f"{message}; nothing was charged.", detail)
        case InvalidImage():
            param = "loras" if job.sampling.loras else "controls" if job.controls else None
            return Failed("invalid_picture", invalid_image(error, job), detail, param)
        case WrongSize():
            message = f"This model's checkpoint can't draw this size: {error}. Nothing was charged. Try another size."
            return Failed("unsupported", message, detail, "size")
    if is_out_of_memory(error):
        message = "The device ran out of memory; nothing was charged. Try a smaller size or fewer references."
        return Failed("out_of_memory", message, detail, movable="larger")
    return Failed("engine_failed", "The image could not be drawn; nothing was charged.", detail)


def to_load_failed_event(error: BaseException, job: ImageJob) -> Failed:
    """Translate whatever a load failed with into the last event of a job that waited for it. `detail` begins with the
    error's own words, for operators. What other programs have taken keeps its code: the checkpoint is not at fault."""
    if isinstance(error, MemoryTaken):
        return replace(to_failed_event(error, job), movable="anywhere")
    reason = str(error) or type(error).__name__
    detail = "".join(traceback.format_exception(error))
    return replace(_checkpoint_failed(job, f"{reason}\n{detail}"), movable="anywhere")


def _checkpoint_failed(job: ImageJob, detail: str) -> Failed:
    message = f"The checkpoint '{job.checkpoint.name}' can't be used; the server's log says why. Nothing was charged."
    return Failed("checkpoint_failed", message, detail)


def invalid_image(error: InvalidImage, job: ImageJob) -> str:
    """Return the message for the caller, with remedies, the nearest cause first."""
    names = [f"the adapter '{name}'" for name, _ in job.sampling.loras]
    names += [f"the control '{control.name}'" for control in job.controls]
    remedies = [f"Try it without {' and '.join(names)}."] if names else []
    if error.wider or not names:
        remedies.append(f"For the server's operator: {error.remedy}.")
    return (
        "What the model drew is not an image: its values are not numbers (NaN or infinite). Nothing was charged. "
        f"{' '.join(remedies)}"
    )
