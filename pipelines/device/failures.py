"""How a job can end other than well, whatever kind it is."""

import torch


class Cancelled(Exception):
    """Nobody wants the job any more."""


class OutOfTime(Exception):
    """The job has had the device for longer than its time limit."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less at once might work."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError)
