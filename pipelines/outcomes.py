"""How a job can end other than well, and what its caller is told."""

import traceback

import torch

from pipelines.checkpoint_files import CheckpointError
from pipelines.checkpoints import UnsupportedTask
from pipelines.types import Failed, ImageJob


class Cancelled(Exception):
    """Nobody wants the job any more."""


class OutOfTime(Exception):
    """The job has had the device for longer than its time limit."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less at once might work."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError)


def failure_of(error: BaseException, job: ImageJob) -> Failed:
    """What the caller is told, and what the log is."""
    detail = "".join(traceback.format_exception(error))
    match error:
        case Cancelled():
            return Failed("cancelled", "The job was cancelled; nothing was charged.")
        case OutOfTime():
            limit = f"{job.time_limit_s:g} s"
            return Failed("timed_out", f"The job ran past its time limit of {limit}; nothing was charged.")
        case UnsupportedTask():
            return Failed("unsupported", f"This model's checkpoint can't do that: {error}.", detail, error.param)
        case CheckpointError():
            message = f"The checkpoint '{job.checkpoint.name}' can't be used; the server's log says why."
            return Failed("checkpoint_failed", f"{message} Nothing was charged.", detail)
        case torch.OutOfMemoryError() | MemoryError():
            message = "The device ran out of memory; nothing was charged. Try a smaller size or fewer references."
            return Failed("out_of_memory", message, detail)
    return Failed("engine_failed", "The picture could not be drawn; nothing was charged.", detail)
