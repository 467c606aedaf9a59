"""OpenMP's worker threads, which slow a CPU down while they are idle.

libgomp, which torch computes with, keeps a pool of threads for every thread that has ever computed. Once all pools
together have more threads than the CPU has cores, it lets them sleep between any two loops instead of spinning, and
waking them takes longer than most loops: on two cores a 1K image of starter-alpha took 2.5 s in a process with one
such thread, and 4.5 s in one where three others had computed before. So a thread releases its pool when it is done.
"""

import ctypes
from collections.abc import Callable
from typing import Final, TypeVar

import torch  # noqa: F401 (brings libgomp into the process)

Result = TypeVar("Result")
SOFT: Final = 1  # omp_pause_soft of OpenMP 5.0: settings are kept, threads are not
_PAUSE: Final[Callable[[int], int]] = getattr(ctypes.CDLL(None), "omp_pause_resource_all", lambda _: 0)


def release_openmp_threads() -> None:
    """End the calling thread's pool; it gets a new one when it computes again. Without libgomp nothing happens."""
    _PAUSE(SOFT)


def run_and_release(work: Callable[..., Result], *arguments: object) -> Result:
    """Return the result of `work`, called on a thread that computes nothing afterwards."""
    try:
        return work(*arguments)
    finally:
        release_openmp_threads()
