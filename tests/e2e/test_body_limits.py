"""Bodies that would cost other keys their answers: large ones, many at once, and JSON that grows when it is parsed."""

import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.harness import PLAIN, MakeServer, Server, charges, suspended, until

PATH = "/v1/images/generations"
MB = 1_000_000
ARRAYS = b'{"prompt": "x", "zz": [' + b"[]," * 20 * MB + b"[]]}"
IMAGE = b'{"prompt": "x", "steps": 0, "image": ["data:image/png;base64,' + b"A" * 60 * MB + b'"]}'
BROKEN = b'{"prompt": "x", "image": ["data:image/png;base64,' + b"A" * 60 * MB + b'"]}'  # refused by the decoder
STALL_S = 8  # 0.4 s where nothing else runs; it was 22 s


@pytest.fixture(scope="module")
def server(make_tiny: MakeServer) -> Server:
    return make_tiny(PLAIN, body_memory_per_key_mib="200", max_running_per_key="4")


@contextlib.contextmanager
def probed(server: Server, key: str) -> Iterator[list[float]]:
    """The times, in seconds, that two small requests of another key take again and again meanwhile."""
    times: list[float] = []
    done = threading.Event()

    def check() -> None:
        with server.http(key) as client:
            while not done.wait(0.05):
                started = time.monotonic()
                assert client.get("/healthz").status_code == client.get("/v1/models").status_code == 200
                times.append(time.monotonic() - started)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        probing = pool.submit(check)
        try:
            yield times
        finally:
            done.set()
            probing.result()


def send(server: Server, content: bytes) -> Any:
    with server.http() as client:
        answer = client.post(PATH, content=content, headers={"Content-Type": "application/json"})
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.daily("arrays")
@pytest.mark.parametrize(
    ("content", "code"),
    [(ARRAYS, "json_too_complex"), (IMAGE, "integer_below_min_value"), (BROKEN, "invalid_image_file")],
    ids=["arrays", "picture", "broken image"],
)
def test_large_bodies_delay_nobody_and_leave_no_memory_behind(server: Server, content: bytes, code: str) -> None:
    other = server.new_key("other")
    before_mib = server.loaded_mib
    with probed(server, other) as times, concurrent.futures.ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: send(server, content), range(4)))  # three fit in the memory of the key
    assert answers == [(400, code)] * 4
    assert max(times) < STALL_S
    until(lambda: server.loaded_mib < before_mib + 60)


def test_a_body_over_the_limit_is_413_for_the_sdk(server: Server) -> None:
    with pytest.raises(openai.APIStatusError, match="/v1/images/edits") as refused:
        server.openai().images.generate(prompt="x", extra_body={"image": ["A" * 70 * MB]})
    assert refused.value.status_code == 413
    with server.http() as client:
        headers = {"Authorization": f"Bearer {server.admin_key}"}
        answer = client.post("/admin/swap", json={"model": "x" * 100_000}, headers=headers)
    assert answer.status_code == 413


def test_a_key_sends_as_many_bodies_as_calls_and_others_wait(server: Server) -> None:
    head = f"POST {PATH} HTTP/1.1\nHost: x\nAuthorization: Bearer {server.key}\nExpect: 100-continue\n"
    with concurrent.futures.ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(server.connection(f"{head}Content-Length: 1000\n\n{{"))
            assert connection.recv(100).startswith(b"HTTP/1.1 100")  # its body is expected
        fifth = pool.submit(send, server, b"{}")
        time.sleep(0.5)
        assert not fifth.done()
        stack.close()  # half of a body is no call: what it had is free
        assert fifth.result() == (400, "missing_required_parameter")


@pytest.mark.nightly
def test_calls_that_go_on_without_their_clients_still_count(server: Server) -> None:
    before = charges(server)
    body = {"prompt": "x", "model": "alpha-image-2-count", "size": "256x256", "steps": 1, "zz": "A" * 60 * MB}
    with suspended(server.readiness()["worker_pid"]):
        for number in range(3):
            with server.unread_call(PATH, {**body, "seed": number}, **{"Idempotency-Key": f"alone {number}"}):
                until(lambda: server.readiness()["jobs"] > number)  # noqa: B023  # called within the loop
        assert send(server, IMAGE) == (429, "rate_limit_exceeded")
    until(lambda: charges(server) == before + 3)
    assert send(server, IMAGE) == (400, "integer_below_min_value")


def test_files_of_a_form_are_on_disk_until_it_is_read_or_cut(server: Server) -> None:
    part = '--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    head = (
        f"POST /v1/images/edits HTTP/1.1\nHost: x\nAuthorization: Bearer {server.key}\n"
        f"Content-Type: multipart/form-data; boundary=b\nContent-Length: {60 * MB}\n\n"
    )
    before_mib = server.loaded_mib
    with server.connection(head, part.encode() + bytes(30 * MB)):
        until(lambda: temporary_bytes(server) > 29 * MB)
        assert server.loaded_mib < before_mib + 25
    until(lambda: temporary_bytes(server) == 0)


def temporary_bytes(server: Server) -> int:
    """What the server has in files without a name."""
    assert server.process is not None
    sizes = []
    for descriptor in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(descriptor)
            if target.endswith("(deleted)") and not target.startswith(("/dev", "/memfd")):
                sizes.append(descriptor.stat().st_size)
    return sum(sizes)
