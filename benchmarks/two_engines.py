"""`python -m benchmarks.two_engines`: two image workers on the CPU against one, each with one thread.

One worker uses all cores of a machine by itself, so two of them gain nothing there. With a thread each, on a machine of
two cores, they do what the workers of two GPUs do: each draws by itself.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.bare import timed
from benchmarks.calls import CONCURRENT, post
from tests.support.harness import REPOSITORY, Server

ROUNDS = 3
MODEL = "alpha-image-2-count"
LARGE, LARGE_SIZE = "alpha-image-2-hd-count", "2048x2048"
HEAD_START_S = 2.0  # of the large pictures
WORKER = '[[image]]\ndevice = "cpu"\n'


def main() -> None:
    """Print seconds with one worker and with two, and their ratio."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", "1")
        one, two = (_measure(Path(folder) / str(workers), workers) for workers in (1, 2))
    for name, one_s in one.items():
        print(f"{name}: {one_s:.2f} s with one worker, {two[name]:.2f} s with two, {one_s / two[name]:.2f} times")


def _measure(folder: Path, workers: int) -> dict[str, float]:
    folder.mkdir()
    engines = folder / "engines.toml"
    engines.write_text(WORKER * workers)
    server = Server(folder / "home", REPOSITORY / "weights", REPOSITORY / "model_configs", {"engines": str(engines)})
    server.start()
    try:
        _draw(server, 0)
        return {
            f"{CONCURRENT} calls at once": _median(lambda: _at_once(server)),
            "a draft alone": _median(lambda: _draw(server, 1)),
            "a draft beside two large pictures": _beside_large(server),
        }
    finally:
        server.kill()


def _draw(server: Server, seed: int) -> None:
    with server.http() as client:
        post(client, MODEL, seed)


def _at_once(server: Server) -> None:
    with ThreadPoolExecutor(CONCURRENT) as pool:
        list(pool.map(lambda seed: _draw(server, seed), range(CONCURRENT)))


def _beside_large(server: Server) -> float:
    """The draft's seconds. Both large pictures are still being drawn when it has come."""
    with server.http() as client, ThreadPoolExecutor(2) as background:
        large = [background.submit(post, client, LARGE, seed, LARGE_SIZE) for seed in range(2)]
        time.sleep(HEAD_START_S)
        draft_s = timed(lambda: _draw(server, 2))
        assert not any(each.done() for each in large)
        for each in large:
            each.result()
    return draft_s


def _median(work: Callable[[], object]) -> float:
    return statistics.median(timed(work) for _ in range(ROUNDS))


if __name__ == "__main__":
    main()
