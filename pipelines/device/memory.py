"""Memory budgets of the device and the host, the dtype of weights, and synchronisation with a GPU."""

import gc
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from pipelines.protocol.images import Dtype
from pipelines.protocol.messages import GpuMemory, WorkerMemory

DEVICE_SHARE = 0.8  # of its memory for weights; the rest is for activations
HOST_SHARE = 0.5
CHAT_CACHE_SHARE = 0.15  # of the device's memory for the KV cache of a chat checkpoint
BFLOAT16_CAPABILITY = (8, 0)  # Ampere; GPUs before it emulate bfloat16
HELD_SHARE = 0.05  # of the device's memory for the latents of paused runs
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits in bytes: weights on the device, weights offloaded to the host, tensors that paused runs hold."""

    device_bytes: int
    host_bytes: int
    held_bytes: int

    @classmethod
    def of(
        cls, device: torch.device, device_gib: float | None = None, host_gib: float | None = None, others_bytes: int = 0
    ) -> Self:
        """The operator's figures, or shares of the machine's memory. `others_bytes` is what the other workers will use
        of the device beside the chat's cache (pipelines.catalog.memory); 0 without other workers.
        """
        host = host_memory_bytes()
        free, total = torch.cuda.mem_get_info(device) if device.type == "cuda" else (host, host)
        others = others_bytes + total * CHAT_CACHE_SHARE if others_bytes else 0
        device_bytes = weights_budget(total, free, others) if device_gib is None else device_gib * 2**30
        return cls(
            device_bytes=int(device_bytes),
            host_bytes=int(host * HOST_SHARE if host_gib is None else host_gib * 2**30),
            held_bytes=int(total * HELD_SHARE),
        )


def weights_budget(total: float, free: float, others: float) -> float:
    """Bytes for weights on a device: its share, without what the other workers will use, and without what programs that
    are not ours use now."""
    strangers = max(0.0, total - free - others)
    return max(0.0, total * DEVICE_SHARE - others - strangers)


def chat_cache_bytes(device: torch.device) -> int:
    """The KV cache of a chat checkpoint may grow to this."""
    total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else host_memory_bytes()
    return int(total * CHAT_CACHE_SHARE)


def host_memory_bytes(root: Path = Path("/")) -> int:
    """The machine's memory, or the container's limit (cgroup v2 or v1) if that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [root / "sys/fs/cgroup/memory.max", root / "sys/fs/cgroup/memory/memory.limit_in_bytes"]
    texts = [path.read_text().strip() for path in limits if path.is_file()]
    return min([physical, *(int(text) for text in texts if text.isdigit())])


def measure_memory(device: torch.device) -> WorkerMemory:
    """What this process and its GPU use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    gpu = None
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        gpu = GpuMemory(total, free, torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device))
    return WorkerMemory(pages * os.sysconf("SC_PAGE_SIZE"), gpu)


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
        if device.type == "cpu":
            return torch.float32
        native = torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY
        return torch.bfloat16 if native else torch.float16
    return DTYPES[dtype]
