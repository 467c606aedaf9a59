"""The bytes that a checkpoint's weights take of the host's memory, page-locked as torch's host allocator does it.

The allocator rounds each tensor up to a power of two, which takes half as much again and more. torch 2.13 can be told
to round and to keep small blocks alone. Both limits must be one: a block that is kept and was not rounded would be
given to a larger request, whose end is then written beyond it (pytorch#192722). Older versions refuse the words.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Final

from pipelines.checkpoints.classes.index import is_text_encoder
from pipelines.protocol.images import Runtime

CACHED_MIB: Final = 8  # so that the pixels of most images go through blocks that are kept
PAGE_BYTES: Final = 4096
OBEYS: Final = (2, 13)  # the first version of torch that knows the limits
LIMITS: Final = f"pinned_max_round_threshold_mb:{CACHED_MIB},pinned_max_cached_size_mb:{CACHED_MIB}"
ALLOCATOR_VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the older name has precedence


@cache
def host_allocator_limits() -> str:
    """Return what a worker adds to PYTORCH_ALLOC_CONF for page-locked memory; nothing for a torch that refuses it."""
    found = re.match(r"(\d+)\.(\d+)", version("torch"))
    obeys = found is not None and (int(found[1]), int(found[2])) >= OBEYS
    return LIMITS if obeys else ""


def rounded_below_bytes(environment: Mapping[str, str] = os.environ) -> float:
    """Return up to which size a worker's page-locked blocks are rounded up to a power of two: by the operator's own
    words for the allocator, or by those that a worker sets."""
    own = next((environment[name] for name in ALLOCATOR_VARIABLES if name in environment), host_allocator_limits())
    limits = re.findall(r"\bpinned_max_(?:round_threshold|cached_size)_mb:(\d+)", own)
    return min((int(mib) * 2**20 for mib in limits), default=float("inf"))


def host_bytes(parts: Mapping[str, Sequence[float]], runtime: Runtime) -> int:
    """Return the bytes of the weights that wait on the host for their turn, for components with tensors of these sizes.
    Those that are not page-locked go through page-locked copies of two tensors at a time."""
    waiting = waiting_on_host(parts, runtime)
    if runtime.offload == "model" or not waiting:
        return int(sum(waiting))
    if not runtime.page_lock:
        return int(sum(waiting) + 2 * max(waiting))
    return page_locked_bytes(waiting)


def waiting_on_host(parts: Mapping[str, Sequence[float]], runtime: Runtime) -> list[float]:
    """Return the sizes of the tensors that wait on the host for their turn."""
    return [size for name, part in parts.items() if _waits(name, runtime) for size in part]


def page_locked_bytes(sizes: Iterable[float], rounded_below: float | None = None) -> int:
    """Return the bytes of page-locked copies of tensors of these sizes."""
    limit = rounded_below_bytes() if rounded_below is None else rounded_below
    return sum(_rounded(int(size), limit) for size in sizes)


def _rounded(size: int, limit: float) -> int:
    if size <= limit:
        return 1 << max(0, size - 1).bit_length()
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _waits(component: str, runtime: Runtime) -> bool:
    return runtime.offload != "none" and (runtime.offload != "encoders" or is_text_encoder(component))
