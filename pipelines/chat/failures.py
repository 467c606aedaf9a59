"""How a chat can end other than well, and what its caller is told."""

import traceback

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.device.failures import Cancelled, OutOfTime, is_out_of_memory
from pipelines.protocol.chat import ChatJob, CountJob
from pipelines.protocol.images import Failed


class Refused(Exception):
    """The request can't be answered as it stands."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


def failure_of(error: BaseException, job: ChatJob | CountJob) -> Failed:
    """What the caller is told, and what the log is."""
    detail = "".join(traceback.format_exception(error))
    if isinstance(error, Refused):
        return error.failed
    if isinstance(error, Cancelled):
        return Failed("cancelled", "The job was cancelled.")
    if isinstance(error, OutOfTime):
        return Failed("timed_out", f"The answer took longer than its time limit of {job.time_limit_s:g} s.")
    if isinstance(error, CheckpointError):
        message = f"The checkpoint '{job.checkpoint.name}' can't be used; the server's log says why."
        return Failed("checkpoint_failed", message, detail)
    if is_out_of_memory(error):
        message = "The device ran out of memory. Try fewer or shorter messages, or a smaller max_tokens."
        return Failed("out_of_memory", message, detail)
    return Failed("engine_failed", "The model could not answer.", detail)
