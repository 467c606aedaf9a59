"""Small files that ask for much: the server stays small, others are answered, and nothing is left behind."""

import base64
import concurrent.futures
import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.support.bombs import (
    SIDE_PX,
    encode,
    gif_of_frames,
    jpeg_of_scans,
    png_of_texts,
    rgba_of_64_megapixels,
    webp_of_frames,
)
from tests.support.harness import Server, assert_clean, charges, until
from tests.support.processes import command_of, group, measured_growth, status_bytes

pytestmark = pytest.mark.nightly

PATH = "/v1/images/generations"
ALPHA, BETA = "alpha-image-2-count", "beta-3-pro-image-count"
SERVER_BYTES, GROUP_BYTES = 50_000_000, 600_000_000
ANSWERED_S = 5.0  # a second where the machine has nothing else to do

BOMBS: dict[str, tuple[Callable[[], bytes], int]] = {
    "RGBA of 64 megapixels": (rgba_of_64_megapixels, 200),
    "JPEG of 3,000 scans": (lambda: jpeg_of_scans(3000), 400),
    "JPEG of 100 scans": (lambda: jpeg_of_scans(100, 1000), 200),
    "GIF of 100,000 frames": (lambda: gif_of_frames(100_000), 200),
    "PNG of texts that inflate": (lambda: png_of_texts(2000), 400),
    "WebP of 100 frames": (lambda: webp_of_frames(100, 500), 200),
}


def body(*references: bytes, model: str = ALPHA) -> dict[str, Any]:
    uris = [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in references]
    return {"model": model, "prompt": "a boat", "size": "256x256", "image": uris}


@pytest.fixture(scope="module")
def pid(server: Server) -> int:
    """The server's process, after a first call with as many references as these tests send: what drawing takes is in
    memory already, and what they measure is the files."""
    assert server.process is not None
    usual = encode(Image.new("RGB", (1024, 1024)))
    with server.http() as client:
        for model, count in ((ALPHA, 1), (BETA, 16)):
            assert client.post(PATH, json=body(*[usual] * count, model=model)).status_code == 200
    return server.process.pid


@contextlib.contextmanager
def others_are_answered(server: Server) -> Iterator[list[float]]:
    """Another key asks again and again. Yields how long the answers took."""
    stranger = server.new_key("stranger")
    took_s, ended = [0.0], threading.Event()

    def request() -> None:
        with server.http(stranger) as client:
            while not ended.is_set():
                for path in ("/v1/models", "/healthz"):
                    began = time.monotonic()
                    assert client.get(path).status_code == 200
                    took_s.append(time.monotonic() - began)
                ended.wait(0.05)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asking = pool.submit(request)
        try:
            yield took_s
        finally:
            ended.set()
            asking.result()


def send(server: Server, *bodies: dict[str, Any]) -> list[httpx.Response]:
    """All at once, and the answers in their order."""
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool, server.http() as client:
        return list(pool.map(lambda one: client.post(PATH, json=one), bodies))


def assert_within_bounds(server: Server, pid: int, bodies: list[dict[str, Any]], statuses: list[int]) -> None:
    with others_are_answered(server) as took_s, measured_growth(pid) as growth:
        answers = send(server, *bodies)
    assert [answer.status_code for answer in answers] == statuses, [answer.text[:200] for answer in answers]
    print(f"server +{growth.server_bytes / 1e6:.0f} MB, all +{growth.group_bytes / 1e6:.0f} MB, {max(took_s):.2f} s")
    assert growth.server_bytes < SERVER_BYTES
    assert growth.group_bytes < GROUP_BYTES
    assert max(took_s) < ANSWERED_S


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_little_memory(server: Server, pid: int, name: str) -> None:
    make, status = BOMBS[name]
    assert_within_bounds(server, pid, [body(make())], [status])


def test_all_at_once_take_no_more(server: Server, pid: int) -> None:
    bodies, statuses = [body(make()) for make, _ in BOMBS.values()], [status for _, status in BOMBS.values()]
    assert_within_bounds(server, pid, bodies, statuses)


def test_an_image_of_sixteen_references_of_64_megapixels_takes_no_more(server: Server, pid: int) -> None:
    """Decoded and drawn. Most are of one colour, which takes less time, and no less memory to draw with."""
    references = [rgba_of_64_megapixels(), *[_gray()] * 8, *[_of_two_colours()] * 7]
    assert_within_bounds(server, pid, [body(*references, model=BETA)], [200])
    until(lambda: os.listdir(server.home / "pixels") == [])


def test_pixels_are_removed_when_a_later_reference_is_broken(server: Server, pid: int) -> None:
    large = rgba_of_64_megapixels()
    assert_within_bounds(server, pid, [body(large, _gray(), large[:-100_000], model=BETA)], [400])
    until(lambda: os.listdir(server.home / "pixels") == [])


def test_a_refused_bomb_names_the_field_and_costs_nothing(server: Server, pid: int) -> None:
    before = charges(server)
    (answer,) = send(server, body(encode(Image.new("RGB", (64, 64))), jpeg_of_scans(3000), model=BETA))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_image_file", "image[1]")
    assert "baseline JPEG" in error["message"]
    assert charges(server) == before
    assert_clean(server)


def test_a_client_that_leaves_takes_the_decoding_with_it(server: Server, pid: int) -> None:
    before, abandoned = charges(server), _abandoned(server)
    with server.unread_call(PATH, body(*[rgba_of_64_megapixels()] * 16, model=BETA)):
        until(lambda: any(status_bytes(one, "VmRSS") > 150_000_000 for one in _decoders(pid)))
    until(lambda: all(status_bytes(one, "VmRSS") < 150_000_000 for one in _decoders(pid)))
    until(lambda: _abandoned(server) == abandoned + 1)
    assert charges(server) == before


@cache
def _gray() -> bytes:
    """The quickest to decode, with the largest file."""
    return encode(Image.new("L", (SIDE_PX, SIDE_PX)), "JPEG")


@cache
def _of_two_colours() -> bytes:
    return encode(Image.new("P", (SIDE_PX, SIDE_PX)), bits=1)


def _decoders(pid: int) -> list[int]:
    return [one for one in group(pid) if b"decoding.worker" in command_of(one)]


def _abandoned(server: Server) -> float:
    """Decoders that were ended because nobody waited for their image."""
    metrics = httpx.get(f"{server.base}/metrics", timeout=60, trust_env=False).text
    count = re.search(r'(?m)^darkroom_decoders_ended_total\{reason="abandoned"\} (\S+)', metrics)
    return float(count[1]) if count else 0.0
