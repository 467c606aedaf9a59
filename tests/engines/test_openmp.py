"""The OpenMP threads of a thread that has computed, as the operating system counts them."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipelines.device.openmp import release_openmp_threads, run_and_release

TASKS = Path("/proc/self/task")
BIG = torch.ones(512, 512)

pytestmark = pytest.mark.skipif(not TASKS.exists(), reason="needs /proc")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Other tests use one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def some_computing() -> Tensor:
    torch.set_num_threads(2)  # the setting is per thread
    return BIG.exp().sum()


def threads_after(work: Callable[[], object]) -> int:
    """The process's threads after the work, while the thread that did it still lives."""
    done, counted = threading.Event(), threading.Event()

    def run() -> None:
        work()
        done.set()
        counted.wait()

    thread = threading.Thread(target=run)
    thread.start()
    done.wait()
    counts = []
    for _ in range(10):  # released threads take a moment to end
        counts.append(len(list(TASKS.iterdir())))
        time.sleep(0.05)
    counted.set()
    thread.join()
    return min(counts)


def test_a_thread_that_has_computed_releases_its_openmp_threads() -> None:
    idle = threads_after(lambda: None)
    assert threads_after(some_computing) > idle, "computing starts threads, else there is nothing to test"
    assert threads_after(lambda: run_and_release(some_computing)) == idle


def test_a_thread_computes_again_after_releasing_them() -> None:
    expected = some_computing()
    release_openmp_threads()
    assert some_computing() == expected
