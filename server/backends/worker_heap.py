"""How the memory of a worker that draws on a CPU is allocated.

An image on a CPU allocates the same activations of many megabytes in every forward pass. By default glibc maps each
anew and unmaps it afterwards, and the system zeroes every page again: a 1K draft of starter-beta, 0.3 s of computing,
took 280,000 page faults and 0.45 s, and now and then a second on a virtual machine, whose host takes freed pages back.
So freed memory stays in the heap for the next pass, as torch's own allocator keeps it on a GPU, until the worker has
been idle for a while (`pipelines.device.memory.free_memory`).

These are glibc's tunables (https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html), which
it reads when a process starts. Other C libraries ignore them.
"""

import os
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "GLIBC_TUNABLES"
TUNABLES: Final = {
    "mmap_max": 0,  # a block in a mapping of its own would be unmapped when it is freed
    "trim_threshold": 2**62,
    # torch's aligned blocks leave crumbs, which a thread's cache would keep between the freed ones: a 4K image had a
    # peak of 646 MiB with them, and 429 without
    "tcache_count": 0,
}


def heap_on_cpu() -> Mapping[str, str]:
    """Return the environment variables that tune glibc's malloc for a worker on a CPU; none where the operator has set
    tunables."""
    if VARIABLE in os.environ:
        return {}
    return {VARIABLE: ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())}
