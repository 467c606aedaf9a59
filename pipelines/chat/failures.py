"""How a chat can fail, and the event that its caller gets."""

import traceback

from pipelines.chat.preparation import LIMIT_S, TookTooLong
from pipelines.checkpoints.errors import CheckpointError, MemoryTaken, spread_retry_s
from pipelines.device.failures import Cancelled, OutOfTime, is_out_of_memory
from pipelines.protocol.chat import ChatJob, CountJob
from pipelines.protocol.images import Failed


class InvalidRequest(Exception):
    """The request can't be answered as it stands."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


def to_failed_event(error: BaseException, job: ChatJob | CountJob) -> Failed:
    """Translate an error into the job's last event, with a message for the caller, and a traceback for the log."""
    detail = "".join(traceback.format_exception(error))
    if isinstance(error, InvalidRequest):
        return error.failed
    if isinstance(error, Cancelled):
        return Failed("cancelled", "The job was cancelled.")
    if isinstance(error, OutOfTime):
        limit = f"{job.time_limit_s:g} s (DARKROOM_JOB_TIME_LIMIT_S)"
        return Failed("timed_out", f"The answer got no further within its time limit of {limit}.")
    if isinstance(error, TookTooLong):
        return Failed("timed_out", f"The chat took longer than {LIMIT_S:g} s to prepare. Please send a smaller one.")
    if isinstance(error, MemoryTaken):
        message = "Other programs have the memory that this model needs. Try again later."
        return Failed("memory_taken", message, detail, retry_after_s=spread_retry_s())
    if isinstance(error, CheckpointError):
        message = f"The checkpoint '{job.checkpoint.name}' can't be used; the server's log says why."
        return Failed("checkpoint_failed", message, f"{error}\n{detail}")
    if is_out_of_memory(error):
        message = "The device ran out of memory. Try fewer or shorter messages, or a smaller max_tokens."
        return Failed("out_of_memory", message, detail)
    return Failed("engine_failed", "The model could not answer.", detail)
