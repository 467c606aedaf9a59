"""Memory budgets of the device and the host, the dtype of weights, and synchronisation with a GPU."""

import gc
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

from pipelines.protocol.images import Dtype

DEVICE_SHARE = 0.8  # of its memory for weights; the rest is for activations
HOST_SHARE = 0.5
HELD_SHARE = 0.05  # of the device's memory for the latents of paused runs
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits in bytes: weights on the device, weights offloaded to the host, tensors that paused runs hold."""

    device_bytes: int
    host_bytes: int
    held_bytes: int

    @classmethod
    def of(cls, device: torch.device, device_gib: float | None = None, host_gib: float | None = None) -> Self:
        """The operator's figures, or shares of the machine's memory."""
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else host
        return cls(
            device_bytes=int(total * DEVICE_SHARE if device_gib is None else device_gib * 2**30),
            host_bytes=int(host * HOST_SHARE if host_gib is None else host_gib * 2**30),
            held_bytes=int(total * HELD_SHARE),
        )


def fence(device: torch.device) -> Callable[[], None]:
    """A function that blocks until at most one turn is queued on the GPU. On a CPU it does nothing."""
    if device.type != "cuda":
        return lambda: None
    launched: deque[torch.cuda.Event] = deque()

    def wait() -> None:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        launched.append(event)
        if len(launched) > 1:
            launched.popleft().synchronize()

    return wait


def free_memory(device: torch.device) -> None:
    """Return unreferenced memory to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def compute_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """The dtype that weights are loaded in."""
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return DTYPES[dtype]
