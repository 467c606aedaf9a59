"""Errors that end a job of any kind."""

import torch


class Cancelled(Exception):
    """The job was cancelled, or its caller disconnected."""


class OutOfTime(Exception):
    """The job has used more device time than its time limit."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch might succeed."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError)
