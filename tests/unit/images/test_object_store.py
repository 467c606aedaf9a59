"""Pictures in an object store, with the whole app in this process: an S3 server that works, loses a file, and goes
away."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from server.accounts import report
from server.settings import CrashPoint
from server.telemetry.crash_points import CrashPoints
from tests.support.in_process import InProcess, in_process
from tests.support.object_store import object_store

BODY = {"prompt": "a star", "model": "alpha-image-2-count", "size": "256x256"}


@pytest.mark.parametrize("body", [{"response_format": "url"}, {"response_format": "b64_json"}, {"stream": True}])
async def test_a_picture_that_is_charged_is_delivered_though_the_store_goes_away(
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
    return len(report.entries(running.services.database))


async def test_pictures_are_served_from_the_store_and_nothing_is_charged_without_it(
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
            running.services.storage.delete([path.removeprefix("/cdn/")])  # as nobody should
            for lost in (await client.get(path), await client.post("/v1/images/generations", json=edit)):
                assert (lost.status_code, lost.json()["error"]["code"]) == (500, "picture_missing")

            before = charges(running)
            store.stop()
            refused = await client.post("/v1/images/generations", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_failed")
            assert charges(running) == before
            assert report.balances(running.services.database)[0].held == 0
