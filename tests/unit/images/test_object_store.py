"""Images in an object store, with the whole app in this process: an S3 server that works, loses a file, and goes
away."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from server.accounts import report
from server.backends.object_storage import ObjectStorage
from server.routes import files
from server.settings import CrashPoint
from server.telemetry.crash_points import CrashPoints
from tests.support.in_process import InProcess, in_process
from tests.support.object_store import object_store

pytestmark = pytest.mark.slow

BODY = {"prompt": "a star", "model": "alpha-image-2-count", "size": "256x256"}


@pytest.mark.parametrize("body", [{"response_format": "url"}, {"response_format": "b64_json"}, {"stream": True}])
async def test_an_image_that_is_charged_is_delivered_though_the_store_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)

        def stop_store(_: CrashPoints, point: CrashPoint) -> None:
            if point == "after-capture-commit":
                store.stop()

        monkeypatch.setattr(CrashPoints, "hit", stop_store)
        async with in_process(tmp_path, storage=store.url) as running:
            answer = await running.client.post("/v1/images/generations", json=BODY | body)
            assert answer.status_code == 200
            assert "error" not in answer.text
            assert charges(running) == 1


def charges(running: InProcess) -> int:
    return len(report.entries(running.services.stores.database))


async def test_images_are_served_from_the_store_and_nothing_is_charged_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        async with in_process(tmp_path, storage=store.url) as running:
            client = running.client
            item = (await client.post("/v1/images/generations", json=BODY)).json()["data"][0]
            path = "/cdn/" + item["url"].rpartition("/")[2]
            whole = await client.get(path)
            assert (whole.status_code, whole.headers["content-type"]) == (200, "image/png")
            assert whole.headers["etag"] == f'"{hashlib.sha256(whole.content).hexdigest()}"'
            monkeypatch.setattr(files, "PIECE_BYTES", 16)
            assert (await client.get(path)).content == whole.content
            middle = await client.get(path, headers={"Range": "bytes=10-60"})
            assert (middle.status_code, middle.content) == (206, whole.content[10:61])
            assert await pieces_for_a_client_that_reads_nothing(running, path) == 1
            part = await client.get(path, headers={"Range": "bytes=1-3"})
            assert (part.status_code, part.content) == (206, b"PNG")
            assert part.headers["content-range"] == f"bytes 1-3/{len(whole.content)}"
            head = await client.head(path)
            assert (head.content, head.headers["content-length"]) == (b"", str(len(whole.content)))
            assert (await client.get(path, headers={"Range": "bytes=9999999-"})).status_code == 416
            other = await client.get(path, headers={"Range": "bytes=1-3", "If-Range": '"another"'})
            assert other.content == whole.content

            edit = BODY | {"image": [item["url"]]}
            assert (await client.post("/v1/images/generations", json=edit)).status_code == 200
            running.services.stores.files.delete([path.removeprefix("/cdn/")])  # as nobody should
            for lost in (await client.get(path), await client.post("/v1/images/generations", json=edit)):
                assert (lost.status_code, lost.json()["error"]["code"]) == (500, "picture_missing")

            before = charges(running)
            store.stop()
            refused = await client.post("/v1/images/generations", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_failed")
            assert charges(running) == before
            assert report.balances(running.services.stores.database)[0].held_units == 0


async def pieces_for_a_client_that_reads_nothing(running: InProcess, path: str) -> int:
    """How many pieces of the image are read for it, until it leaves."""
    reads: list[tuple[int, int]] = []
    sent, left = asyncio.Event(), asyncio.Event()

    def counted(storage: ObjectStorage, name: str, start: int, end: int) -> bytes:
        reads.append((start, end))
        return read_range(storage, name, start, end)

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            assert len(message["body"]) <= files.PIECE_BYTES
            sent.set()
            await left.wait()  # as a full connection makes it wait

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "method": "GET", "path": path, "raw_path": path.encode()}
    scope |= {"headers": [], "query_string": b"", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("test", 80)}
    with pytest.MonkeyPatch.context() as monkeypatch:
        read_range = ObjectStorage.read_range
        monkeypatch.setattr(ObjectStorage, "read_range", counted)
        task = asyncio.create_task(running.app(scope, receive, send))
        await sent.wait()
        read = len(reads)
        left.set()
        await task
    return read
