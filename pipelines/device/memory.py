"""What the engine may take of the device and the host, and how it waits for a GPU."""

import gc
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

DEVICE_SHARE = 0.8  # of its memory for weights; the rest is for what the pictures need while they are drawn
HOST_SHARE = 0.5
HELD_SHARE = 0.05  # of the device's memory for what paused runs keep there


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bytes: for weights on the device, for weights that wait on the host, for what paused runs hold."""

    device_bytes: int
    host_bytes: int
    held_bytes: int

    @classmethod
    def of(cls, device: torch.device, device_gib: float | None = None, host_gib: float | None = None) -> Self:
        """The operator's figures, or shares of what the machine has."""
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        whole = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else host
        return cls(
            device_bytes=int(whole * DEVICE_SHARE if device_gib is None else device_gib * 2**30),
            host_bytes=int(host * HOST_SHARE if host_gib is None else host_gib * 2**30),
            held_bytes=int(whole * HELD_SHARE),
        )


def fence(device: torch.device) -> Callable[[], None]:
    """A call that lets a thread run one turn ahead of a GPU and no more. A CPU is never behind."""
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
    """Give back what nothing refers to."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
