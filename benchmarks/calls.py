"""Measurements of calls to the running server. Each returns the seconds of its rounds."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
LARGE_SIZE = "3840x2160"
STARTS = 3
HEAD_STARTS_S = (0.5, 1.0, 1.7, 2.5, 3.4)  # of the large image


def overhead(server: Server, model: ImageModel) -> tuple[list[float], list[float]]:
    """(a) Seconds of a 1K image: bare, and through the server. Rounds alternate; the first warms both."""
    pipeline = bare_pipeline(model.checkpoint.path)
    with server.http() as client:
        rounds = [
            (timed(lambda: draw(pipeline, model, ONE_K)), timed(lambda seed=seed: post(client, model.name, seed)))
            for seed in range(ROUNDS + 1)
        ][1:]
    bare, served = zip(*rounds, strict=True)
    return list(bare), list(served)


def concurrency(server: Server, model: ImageModel) -> tuple[list[float], list[float]]:
    """(b) Seconds for eight 1K images: bare at its best batch size, and as eight concurrent calls. Rounds alternate."""
    pipeline = bare_pipeline(model.checkpoint.path)

    def bare_s(batch: int) -> float:
        return timed(lambda: draw(pipeline, model, ONE_K, batch)) * CONCURRENT / batch

    draw(pipeline, model, ONE_K)
    best = min(BATCHES, key=bare_s)
    rounds = [(bare_s(best), timed(lambda: at_once(server, model.name))) for _ in range(3)]
    bare, served = zip(*rounds, strict=True)
    return list(bare), list(served)


@dataclass(frozen=True, slots=True)
class Fairness:
    """Seconds of a draft and of a 4K image, by rounds: alone, and the draft sent while the 4K image is drawn."""

    draft_alone: list[float] = field(default_factory=list)
    draft_beside: list[float] = field(default_factory=list)
    large_alone: list[float] = field(default_factory=list)
    large_overtaken: list[float] = field(default_factory=list)


def fairness(server: Server) -> Fairness:
    """(c) Rounds alternate, and each sends the draft at another time: how long it waits depends on what it meets."""
    found = Fairness()
    with server.http() as client:
        post(client, DRAFT, 0)
        for head_start_s in HEAD_STARTS_S:
            found.draft_alone.append(timed(lambda: post(client, DRAFT, 1)))
            found.large_alone.append(timed(lambda: post(client, LARGE, 1, LARGE_SIZE)))
            draft_s, large_s = draft_beside_large(server, head_start_s)
            found.draft_beside.append(draft_s)
            found.large_overtaken.append(large_s)
    return found


def draft_beside_large(server: Server, head_start_s: float) -> tuple[float, float]:
    """Return the seconds of a draft that is sent so long after a 4K image, and those of that image."""
    with server.http() as client, ThreadPoolExecutor(1) as background:
        large = background.submit(timed, lambda: _call(server, LARGE, 1, LARGE_SIZE))
        time.sleep(head_start_s)
        return timed(lambda: post(client, DRAFT, 1)), large.result()


def first_image(server: Server, catalog: Catalog) -> tuple[list[float], list[float]]:
    """(d) Seconds from the command to ready, and to the first image, of starts whose checkpoints are tried first, and
    of those that know them. The server must not be running, and runs afterwards."""
    ready, first = [], []
    for _ in range(STARTS):
        server.stop()
        began = time.perf_counter()
        server.start(wait=False)
        server.wait_ready(tried=False)
        ready.append(time.perf_counter() - began)
        _call(server, catalog.default, 0)
        first.append(time.perf_counter() - began)
    server.wait_ready()
    return ready, first


def at_once(server: Server, model: str) -> None:
    """Eight calls of a 1K image at once."""
    with ThreadPoolExecutor(CONCURRENT) as pool:
        list(pool.map(lambda seed: _call(server, model, seed), range(CONCURRENT)))


def _call(server: Server, model: str, seed: int, size: str = "1024x1024") -> None:
    with server.http() as client:
        post(client, model, seed, size)


def post(client: httpx.Client, model: str, seed: int, size: str = "1024x1024") -> None:
    body: dict[str, Any] = {"model": model, "prompt": "a red boat at sunset", "size": size, "seed": seed}
    client.post("/v1/images/generations", json=body, timeout=None).raise_for_status()
