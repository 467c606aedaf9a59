"""A disk that is full or read-only, and a file that is gone: a clear error, nothing charged, nothing lost, and the
server works again by itself. The disk is a small file system in memory, which only root can mount."""

import contextlib
import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.support.harness import Server, assert_clean, charges, count_rows, until

pytestmark = pytest.mark.nightly

PATH = "/v1/images/generations"
QUICK: dict[str, Any] = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count"}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 32 MiB."""
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can mount a disk to fill")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="module")
def server(disk: Path, tiny: tuple[Path, Path]) -> Iterator[Server]:
    """A server that has all its files there: database, results, logs, pixels and uploads."""
    with pytest.MonkeyPatch.context() as patch:
        (disk / "tmp").mkdir()
        patch.setenv("TMPDIR", str(disk / "tmp"))
        running = Server(disk / "home", *tiny).start()
    yield running
    running.kill()


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Not a byte is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """As after a disk error, when the system remounts the file system so."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def post(server: Server) -> httpx.Response:
    with server.http() as client:
        return client.post(PATH, json=QUICK)


def assert_works_again(server: Server, charged_before: int) -> None:
    """The holds of the calls that failed are given back, and the next call works."""
    assert post(server).status_code == 200
    until(lambda: count_rows(server, "holds", "state = 'held'") == 0)
    assert charges(server) == charged_before + 1
    assert_clean(server)


def assert_refused(answer: httpx.Response, *codes: str) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] in codes
    assert 1 <= int(answer.headers["retry-after"]) <= 120


def test_a_full_disk_refuses_calls_and_uploads_and_nothing_else(server: Server, disk: Path) -> None:
    drawn = post(server)
    before = charges(server)
    image = io.BytesIO()
    Image.frombytes("RGB", (1024, 1024), os.urandom(3 * 1024**2)).save(image, "PNG")
    upload = {"image": ("a.png", image.getvalue(), "image/png")}
    with full(disk), server.http() as client:
        for _ in range(3):
            assert_refused(post(server), "storage_failed", "database_failed")
        sent = client.post("/v1/images/edits", data={"prompt": "a star", "model": QUICK["model"]}, files=upload)
        assert_refused(sent, "storage_failed")
        job = f"/v1/images/jobs/{drawn.headers['x-darkroom-job']}"
        for path in ("/v1/models", "/healthz", "/readyz", job, drawn.json()["data"][0]["url"]):
            assert client.get(path).status_code == 200
        assert charges(server) == before
    assert_works_again(server, before)


def test_results_that_are_read_only_refuse_calls(server: Server) -> None:
    post(server)
    before = charges(server)
    with read_only(server.home / "results"):
        assert_refused(post(server), "storage_failed")
    assert_works_again(server, before)


def test_a_result_that_was_lost_is_an_error(server: Server) -> None:
    drawn = post(server)
    url, before = drawn.json()["data"][0]["url"], charges(server)
    (file,) = (server.home / "results").rglob(url.rpartition("/")[2])
    kept = file.rename(server.home / "kept")
    with server.http() as client:
        for path in (url, f"/v1/images/jobs/{drawn.headers['x-darkroom-job']}"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "picture_missing")
        answer = client.post(PATH, json={**QUICK, "image": [url]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "picture_missing")
    assert file.name in server.darkroom("ledger", "--check").stderr
    kept.rename(file)
    assert_works_again(server, before)
