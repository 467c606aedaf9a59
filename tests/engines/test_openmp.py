"""The OpenMP threads of a thread that has computed, as the operating system counts them."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipelines.device.openmp import release_openmp_threads, run_and_release
from pipelines.images.engine import ImageEngine
from pipelines.protocol.images import Finished, ImageJob
from tests.support.harness import until
from tests.support.polling import eventually

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


def threads() -> set[str]:
    """Of this process. Some may be of earlier tests, and end at any moment."""
    return {task.name for task in TASKS.iterdir()}


@contextlib.contextmanager
def started_by(work: Callable[[], object]) -> Iterator[set[str]]:
    """The threads that the work has started, while the thread that did it still lives."""
    done, counted = threading.Event(), threading.Event()
    new: set[str] = set()

    def run() -> None:
        before = threads()
        work()
        new.update(threads() - before)
        done.set()
        counted.wait()

    thread = threading.Thread(target=run)
    thread.start()
    done.wait()
    try:
        yield new
    finally:
        counted.set()
        thread.join()


def test_a_thread_that_has_computed_releases_its_openmp_threads() -> None:
    with started_by(some_computing) as started:
        assert started & threads(), "computing starts threads, else there is nothing to test"
    kept: list[set[str]] = []

    def compute_and_release() -> None:
        before = threads()
        run_and_release(lambda: (some_computing(), kept.append(threads() - before)))

    with started_by(compute_and_release):
        (started,) = kept
        assert started, "it computes on threads of its own"
        until(lambda: not started & threads())  # they take a moment to end


def test_a_thread_computes_again_after_releasing_them() -> None:
    expected = some_computing()
    release_openmp_threads()
    assert some_computing() == expected


@pytest.mark.nightly
async def test_an_engine_that_has_drawn_keeps_none(job: Callable[..., ImageJob]) -> None:
    """Neither for the turns of an image nor for what is computed after them, such as its preview map: each pool that
    is left slows all others down."""
    image = job("sd", width_px=256, height_px=256)
    release_openmp_threads()  # of making the checkpoint
    before = threads()
    engine = ImageEngine(torch.device("cpu"))
    await engine.prepare(image.checkpoint)
    events = [event async for event in engine.submit(image)]
    assert isinstance(events[-1], Finished), events[-1]
    own = {str(thread.native_id) for thread in threading.enumerate()}
    await eventually(lambda: not threads() - before - own)
