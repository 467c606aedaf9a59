"""What is raised for a checkpoint that can't be served."""

import random
from typing import Final

RETRY_AFTER_S: Final = 15.0  # until a checkpoint is tried again whose memory other programs have


class CheckpointError(Exception):
    """A checkpoint can't be served. The message names the file or key, and the right value."""


class RefusedOption(CheckpointError):
    """A value of `[runtime]` that this checkpoint or this device does not take; `runtime = "auto"` goes on without."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class MemoryTaken(CheckpointError):
    """The checkpoint would fit, but other programs have the memory now: it is tried again. The message names them."""


def spread_retry_s() -> float:
    """Return when a caller is to try again whose model's memory others have: not when all others do."""
    return RETRY_AFTER_S * (1 + random.random() / 2)  # noqa: S311


class BrokenFile(CheckpointError):
    """The file is no weight file, or not a whole one. The message names it."""


class NotServed(Exception):
    """The catalog has dropped a checkpoint that served, and no call waits for what was still to be tried of it."""
