"""`python -m benchmarks.two_engines`: two image workers on the CPU against one. Within three minutes.

Each worker of the comparison has half of the cores as threads, the one too: so two of them do what the workers of two
GPUs do, each draws by itself. Above that is what one worker with all cores does, which is what a machine without GPUs
is better served by.
"""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from benchmarks.bare import timed
from benchmarks.calls import CONCURRENT, post
from tests.support.harness import REPOSITORY, Server, until

ROUNDS, BUDGET_S = 3, 20.0  # as many rounds as begin within the budget
MODEL = "alpha-image-2-count"
LARGE = {"model": "alpha-image-2-hd-count", "prompt": "a red boat at sunset", "size": "2048x2048", "background": True}
JOBS = "/v1/images/jobs"
WORKER = '[[image]]\ndevice = "cpu"\n'


def main() -> None:
    """Print what the machine had, the seconds of one worker and of two, and their ratio."""
    cores = len(os.sched_getaffinity(0))
    half = max(1, cores // 2)
    print(f"{cores} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f} before; {half} threads a worker")
    with tempfile.TemporaryDirectory() as folder:
        all_cores = _measure(Path(folder) / "all", 1, cores, ("calls",))
        one, two = (_measure(Path(folder) / str(workers), workers, half, tuple(WORK)) for workers in (1, 2))
    for name, one_s in one.items():
        whole = f"; {all_cores[name]:.2f} s with one of {cores} threads" if name in all_cores else ""
        ratio = f"{one_s / two[name]:.2f} times"
        print(f"{WORK[name][0]}: {one_s:.2f} s with one worker, {two[name]:.2f} s with two, {ratio}{whole}")
    print(f"load {os.getloadavg()[0]:.1f} after. On a machine with other work the figures say nothing.")


def _measure(folder: Path, workers: int, threads: int, work: tuple[str, ...]) -> dict[str, float]:
    folder.mkdir()
    engines = folder / "engines.toml"
    engines.write_text(WORKER * workers)
    server = Server(folder / "home", REPOSITORY / "weights", REPOSITORY / "model_configs", {"engines": str(engines)})
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", str(threads))
        server.start()
    try:
        _at_once(server)  # every worker has drawn
        return {name: WORK[name][1](server) for name in work}
    finally:
        server.kill()


def _draw(server: Server, seed: int) -> None:
    with server.http() as client:
        post(client, MODEL, seed)


def _at_once(server: Server) -> None:
    with ThreadPoolExecutor(CONCURRENT) as pool:
        list(pool.map(lambda seed: _draw(server, seed), range(CONCURRENT)))


def _beside_large(server: Server) -> float:
    """The draft's seconds. Both large images are still being drawn when it has come."""
    with server.http() as client:
        large = [_begin(client, seed) for seed in range(2)]
        until(lambda: [_state(client, job) for job in large] == ["running"] * 2)
        draft_s = timed(lambda: _draw(server, 2))
        assert [_state(client, job) for job in large] == ["running"] * 2
        for job in large:
            client.post(f"{JOBS}/{job}/cancel").raise_for_status()
    return draft_s


def _begin(client: httpx.Client, seed: int) -> str:
    answer = client.post("/v1/images/generations", json={**LARGE, "seed": seed}).raise_for_status()
    return answer.headers["x-darkroom-job"]


def _state(client: httpx.Client, job: str) -> str:
    state: str = client.get(f"{JOBS}/{job}").raise_for_status().json()["state"]
    return state


def _median(work: Callable[[], object]) -> float:
    began, times = time.monotonic(), list[float]()
    while len(times) < ROUNDS and time.monotonic() - began < BUDGET_S:
        times.append(timed(work))
    return statistics.median(times)


WORK: dict[str, tuple[str, Callable[[Server], float]]] = {
    "calls": (f"{CONCURRENT} calls at once", lambda server: _median(lambda: _at_once(server))),
    "draft": ("a draft alone", lambda server: _median(lambda: _draw(server, 1))),
    "beside": ("a draft beside two large images", _beside_large),
}

if __name__ == "__main__":
    main()
