"""OpenMP's helper threads, which slow a CPU down while they do nothing.

libgomp, which torch computes with, keeps helpers for every thread that has ever computed. Once all helpers together are
more than the cores, it lets them sleep between any two loops instead of waiting awake for the next one, and waking
them takes longer than most loops do: on two cores a 1K picture of starter-alpha took 2.5 s in a process with one such
thread, and 4.5 s in one where three others had computed before. So a thread lets its helpers go when it is done.
"""

import ctypes
from collections.abc import Callable
from typing import Final, TypeVar

import torch  # noqa: F401 (brings libgomp into the process)

Result = TypeVar("Result")
SOFT: Final = 1  # omp_pause_soft of OpenMP 5.0: settings are kept, threads are not


def _found() -> Callable[[int], int]:
    pause: Callable[[int], int] = getattr(ctypes.CDLL(None), "omp_pause_resource_all", lambda _: 0)
    return pause


_PAUSE: Final = _found()


def let_helpers_go() -> None:
    """End the calling thread's helpers; it gets new ones when it computes again. Without libgomp nothing happens."""
    _PAUSE(SOFT)


def compute(work: Callable[..., Result], *arguments: object) -> Result:
    """Call it, on a thread that has nothing to compute afterwards."""
    try:
        return work(*arguments)
    finally:
        let_helpers_go()
