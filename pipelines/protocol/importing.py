"""Imports without the garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Pause the collector during imports, and leave what they made out of later collections. All of it stays, and to
    look through half a million objects again and again is a quarter of the time that the libraries take."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
