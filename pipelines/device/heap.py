"""The heap of glibc's malloc. Other C libraries have none of these functions; nothing happens there."""

import ctypes
import os
from typing import Final

LIBC: Final = ctypes.CDLL(None)
M_ARENA_MAX: Final = -8  # of glibc's malloc.h


def share_one_arena() -> None:
    """Make all threads share one arena of glibc's malloc: they take turns to draw, and glibc would keep for each the
    memory that its images freed. The operator's own number, in MALLOC_ARENA_MAX, stays."""
    if hasattr(LIBC, "mallopt") and "MALLOC_ARENA_MAX" not in os.environ:
        LIBC.mallopt(M_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Give all pages that hold nothing back to the system. A gigabyte takes about a tenth of a second."""
    if hasattr(LIBC, "malloc_trim"):
        LIBC.malloc_trim(0)
