"""What the engine may take of the device and the host, and how it waits for a GPU."""

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

from pipelines.batching import Batch

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


def held_bytes(batch: Batch) -> int:
    """What a run holds between turns, at most: latents and embeddings, references, and an 8-bit canvas for each row.

    Latents take up to two numbers of four bytes for each pixel's worth of a canvas byte or less in every codec in use
    (16 channels at an eighth of the side: a quarter of a number a pixel), so one canvas more covers them.
    """
    job = batch.rows[0].job
    references = sum(len(picture.data) for row in batch.rows for picture in row.job.references)
    return len(batch.rows) * job.width_px * job.height_px * 6 + references


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
