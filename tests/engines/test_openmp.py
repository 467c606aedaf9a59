"""Threads that have computed and are done, by the operating system's own count of the process's threads."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipelines.device.openmp import compute, let_helpers_go

TASKS = Path("/proc/self/task")
BIG = torch.ones(512, 512)

pytestmark = pytest.mark.skipif(not TASKS.exists(), reason="nobody counts threads here")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Other tests compute on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def some_computing() -> Tensor:
    torch.set_num_threads(2)  # each thread has a setting of its own
    return BIG.exp().sum()


def threads_while(work: Callable[[], object]) -> int:
    """How many there are after the work, while the thread that did it still lives."""
    done, counted = threading.Event(), threading.Event()

    def run() -> None:
        work()
        done.set()
        counted.wait()

    thread = threading.Thread(target=run)
    thread.start()
    done.wait()
    counts = []
    for _ in range(10):  # those that were let go take a moment to end
        counts.append(len(list(TASKS.iterdir())))
        time.sleep(0.05)
    counted.set()
    thread.join()
    return min(counts)


def test_a_thread_that_has_computed_leaves_no_helpers_behind() -> None:
    quiet = threads_while(lambda: None)
    assert threads_while(some_computing) > quiet, "computing has helpers, else there is nothing to see"
    assert threads_while(lambda: compute(some_computing)) == quiet


def test_it_computes_again_after_they_have_gone() -> None:
    expected = some_computing()
    let_helpers_go()
    assert some_computing() == expected
