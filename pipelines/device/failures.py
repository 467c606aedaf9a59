"""Errors that end a job of any kind, and the one that ends the process: a device that no longer answers."""

import re
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from pipelines.protocol.messages import LOST_DEVICE_EXIT
from pipelines.protocol.processes import end_process

# Allocation failures that are not torch.OutOfMemoryError: of cuBLAS, cuDNN, a driver call or the host's allocator; and
# torch's own where it can't ask NVML who has the memory (an instance of a divided GPU, Jetson)
NO_MEMORY = re.compile(
    r"out of memory|_ALLOC(ATION)?_FAILED|ERROR_OUT_OF_MEMORY|can(no|')t allocate memory|NVML_SUCCESS == \w+ INTERNAL",
    re.IGNORECASE,
)
DEVICE_ERROR = re.compile(
    r"\b(CUDA|HIP)( driver)? error|Triton Error|\b(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT)_\w+|device-side assert|NCCL"
)

Result = TypeVar("Result")


class Cancelled(Exception):
    """The job was cancelled, or its caller disconnected."""


class OutOfTime(Exception):
    """The job has used more device time than its time limit. The text says how far it came, such as "at step 12 of
    30"."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a smaller batch might succeed: an allocation failed, under whatever name, here or in a cause."""
    return any(
        isinstance(cause, torch.OutOfMemoryError | MemoryError)
        or (isinstance(cause, RuntimeError) and NO_MEMORY.search(str(cause)) is not None)
        for cause in _causes(error)
    )


def first_line(error: BaseException) -> str:
    """Return what an error says in its first line, or its class: libraries go on with advice, or a C++ traceback."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def clear_frames(error: BaseException) -> None:
    """Free what the frames of the traceback hold, of the error and its causes: the tensors that did not fit."""
    for cause in _causes(error):
        traceback.clear_frames(cause.__traceback__)


def is_device_error(error: BaseException) -> bool:
    """Return whether the device, or a library on it, failed for another reason than memory."""
    return not is_out_of_memory(error) and any(
        isinstance(cause, torch.AcceleratorError)
        or (isinstance(cause, RuntimeError) and DEVICE_ERROR.search(str(cause)) is not None)
        for cause in _causes(error)
    )


def is_responsive(device: torch.device) -> bool:
    """Return whether the device still computes. After an illegal access, an ECC error or the like, every call on it
    raises, until the process ends ("sticky" errors: CUDA's cudaErrorIllegalAddress and others). Blocks."""
    try:
        torch.ones((), device=device).item()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError as error:
        return is_out_of_memory(error)
    return True


def require_device(error: BaseException, device: torch.device) -> None:
    """Raise the error of a trial again if it says nothing about what was tried: the device ran out of memory, or no
    longer answers. After any other one, whatever it names, the trial's answer is no."""
    if is_out_of_memory(error) or (is_device_error(error) and not is_responsive(device)):
        raise error


def exit_if_lost(error: BaseException, device: torch.device) -> None:
    """End this process if the error was the device's and the device no longer answers: nothing else would bring it
    back, and every later job would fail. The server then fails the jobs in here, uncharged, and starts a new worker.
    """
    if is_device_error(error) and not is_responsive(device):
        reason = first_line(error)
        end_process(LOST_DEVICE_EXIT, f"The device no longer answers, so this worker ends: {reason}")


def watch_device(device: torch.device, work: Callable[..., Result], *arguments: object) -> Result:
    """Return the result of `work(*arguments)`, and end the process for an error after which the device no longer
    answers."""
    try:
        return work(*arguments)
    except Exception as error:
        exit_if_lost(error, device)
        raise


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those that it was raised from, as libraries wrap what they catch."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
