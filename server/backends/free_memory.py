"""Gives the memory that large bodies have used back to the system."""

import ctypes


def release_free_memory() -> None:
    """Give freed memory back to the system. It takes milliseconds, without the interpreter lock.

    glibc keeps freed memory unless it is asked. Other C libraries have no such function.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
