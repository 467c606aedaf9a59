"""Measurements of calls to the running server. Each returns seconds."""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from benchmarks.bare import bare_pipeline, draw, timed
from server.catalog.images import Catalog, ImageModel
from tests.support.harness import Server

ROUNDS = 5
CONCURRENT = 8
BATCHES = (1, 2, 4, 8)
ONE_K = (1024, 1024)
DRAFT = "beta-2.5-flash-image-count"
LARGE = "beta-3.1-flash-image-4k-count"
HEAD_STARTS_S = (0.5, 1.0, 1.7, 2.5, 3.4)  # of the large image


def overhead(server: Server, model: ImageModel) -> tuple[float, float]:
    """(a) Median seconds of a 1K image: bare, and through the server. Rounds alternate; the first warms both."""
    pipeline = bare_pipeline(model.checkpoint.path)
    with server.http() as client:
        rounds = [
            (timed(lambda: draw(pipeline, model, ONE_K)), timed(lambda seed=seed: post(client, model.name, seed)))
            for seed in range(ROUNDS + 1)
        ][1:]
    bare, served = zip(*rounds, strict=True)
    return statistics.median(bare), statistics.median(served)


def concurrency(server: Server, model: ImageModel) -> tuple[float, float]:
    """(b) Seconds for eight 1K images: bare at its best batch size, and as eight concurrent calls."""
    pipeline = bare_pipeline(model.checkpoint.path)
    draw(pipeline, model, ONE_K)
    best = min(timed(lambda n=n: draw(pipeline, model, ONE_K, n)) * CONCURRENT / n for n in BATCHES)
    return best, statistics.median(_concurrent_calls(server, model.name) for _ in range(3))


def fairness(server: Server) -> dict[str, float]:
    """(c) Median seconds of a 1K draft and of a 4K image: alone, and the draft sent while the 4K image is drawn.
    Rounds alternate, and each sends the draft at another time: how long it waits depends on what it meets."""
    with server.http() as client, ThreadPoolExecutor(1) as background:
        post(client, DRAFT, 0)
        rounds = []
        for head_start_s in HEAD_STARTS_S:
            draft_s = timed(lambda: post(client, DRAFT, 1))
            large_s = timed(lambda: post(client, LARGE, 1, "3840x2160"))
            large = background.submit(timed, lambda: _call(server, LARGE, 1, "3840x2160"))
            time.sleep(head_start_s)
            rounds.append((draft_s, timed(lambda: post(client, DRAFT, 1)), large_s, large.result()))
    names = ("draft_alone_s", "draft_with_large_s", "large_alone_s", "large_overtaken_s")
    return dict(zip(names, map(statistics.median, zip(*rounds, strict=True)), strict=True))


def first_image(server: Server, catalog: Catalog) -> tuple[float, float]:
    """(d) Seconds from the command to ready, and to the first image. The server must not be running."""
    began = time.perf_counter()
    server.start()
    ready_s = time.perf_counter() - began
    _call(server, catalog.default, 0)
    return ready_s, time.perf_counter() - began


def _concurrent_calls(server: Server, model: str) -> float:
    with ThreadPoolExecutor(CONCURRENT) as pool:
        return timed(lambda: list(pool.map(lambda seed: _call(server, model, seed), range(CONCURRENT))))


def _call(server: Server, model: str, seed: int, size: str = "1024x1024") -> None:
    with server.http() as client:
        post(client, model, seed, size)


def post(client: httpx.Client, model: str, seed: int, size: str = "1024x1024") -> None:
    body: dict[str, Any] = {"model": model, "prompt": "a red boat at sunset", "size": size, "seed": seed}
    client.post("/v1/images/generations", json=body, timeout=None).raise_for_status()
