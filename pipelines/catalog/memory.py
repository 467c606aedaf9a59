"""How the memory of a machine and of its devices is divided between workers. Pure: the server reckons with it too."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pipelines.catalog.cgroups import memory_limits
from pipelines.catalog.chat_files import loaded_bytes
from pipelines.protocol.images import Quantize

DEVICE_SHARE: Final = 0.8  # of its memory for weights; the rest is for activations
DRAWING_BYTES: Final = 7 * 2**29  # which an image of a megapixel may need beside the weights (benchmarks.memory --real)
LEAST_SHARE: Final = 0.5  # for weights on small devices, whose checkpoints draw smaller images
CHAT_CACHE_SHARE: Final = 0.15  # of the device's memory for the KV cache of chats, unless a setting says otherwise
CONTEXT_BYTES: Final = 2**30  # of a process on a GPU: CUDA's context and the libraries; 0.7 to 1.4 GiB on an H100


def worker_bytes(checkpoints: Iterable[tuple[Path, Quantize]]) -> int:
    """Return the bytes that a worker with these checkpoints takes: their weights, quantized so, and CUDA's context,
    without a KV cache. 0 for a worker without checkpoints, which does not run. Folders that are not there count
    nothing: loading them says so."""
    listed = set(checkpoints)
    return sum(loaded_bytes(*each) for each in listed) + CONTEXT_BYTES if listed else 0


def weights_budget(total: float, free: float, others: float) -> float:
    """Return the bytes for weights on a device: its share, which leaves room to draw, without the bytes that the other
    workers will use, and without those that programs that are not ours use now."""
    strangers = max(0.0, total - free - others)
    share = max(LEAST_SHARE * total, min(DEVICE_SHARE * total, total - DRAWING_BYTES))
    return max(0.0, share - others - strangers)


def host_memory_bytes(root: Path = Path("/")) -> int:
    """Return the machine's memory, or the least that a control group around this process allows, if that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *memory_limits(root)])
