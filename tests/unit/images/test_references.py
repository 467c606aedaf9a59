"""References as text: results, stored images, URLs that can't be loaded, and how many files are in memory at once."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.ledger import BilledCall, Ledger
from server.accounts.results import ResultStore, StoredResult
from server.backends.decoding.pool import DecoderPool
from server.backends.fetch import FetchRules
from server.backends.storage import LocalStorage
from server.errors import BadRequest
from server.flows import references as loading
from server.flows.references import DOWNLOADS_PER_KEY, MAX_FILE_BYTES, TURNS, Reference, ReferenceLoader, StoredImage
from tests.support.file_counter import FileCounter
from tests.support.in_process import png
from tests.support.polling import eventually
from tests.unit.accounts.helpers import capture

NAME, THERE = f"{'0' * 32}.png", f"{'1' * 32}.png"  # the first was deleted


@pytest.fixture
async def references(tmp_path: Path) -> AsyncIterator[ReferenceLoader]:
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.migrate()
    ledger = Ledger(database, owner="me", lease_s=60)
    key, _ = create_key(database, "one", frozenset({"alpha"}))
    ledger.hold(BilledCall("call_1", key.id, "images.generations", "alpha", 1000))
    capture(ledger, "call_1", [StoredResult(name, "image/png", 16, 16, 100, "0" * 64, 0) for name in (NAME, THERE)])
    storage, decoders = LocalStorage(tmp_path / "results"), DecoderPool(tmp_path / "pixels")
    storage.write(THERE, png())
    await decoders.start()
    yield ReferenceLoader(ResultStore(database), storage, decoders, FetchRules(False, MAX_FILE_BYTES, 1))
    await decoders.stop()


@pytest.mark.parametrize(
    ("source", "message", "code"),
    [
        ("https://[x", "not a URL that can be read", "invalid_image_url"),
        ("https://elsewhere.test/a.png", "DARKROOM_FETCH", "invalid_image_url"),
        (f"http://localhost:8080/cdn/{NAME}", "has been deleted", "result_not_found"),
        (base64.b64encode(png()).decode(), "send it as 'data:image/png;base64,...'", "invalid_image_url"),
        ("/9j/" + "A" * 2_000_000, "send it as 'data:image/jpeg;base64,...'", "invalid_image_url"),
        ("UklGR" + "ab-_\n" * 40, "send it as 'data:image/webp;base64,...'", "invalid_image_url"),
        ("R0lGOD" + "lh" * 40 + "==", "send it as 'data:image/gif;base64,...'", "invalid_image_url"),
    ],
)
async def test_a_reference_that_can_not_be_loaded_is_a_400_that_names_the_field(
    references: ReferenceLoader, source: str, message: str, code: str
) -> None:
    with pytest.raises(BadRequest, match=message) as raised:
        await references.load("key_1", (Reference("image[0]", source),))
    assert (raised.value.param, raised.value.code) == ("image[0]", code)


async def test_a_stored_image_that_was_deleted_is_an_error_of_its_chain(references: ReferenceLoader) -> None:
    with pytest.raises(BadRequest, match="An image of this chain has been deleted; begin a new one") as raised:
        await references.load("key_1", (Reference("input", StoredImage(NAME)),))
    assert raised.value.param == "previous_response_id"


@pytest.mark.parametrize("source", [f"http://localhost:8080/cdn/{THERE}", StoredImage(THERE)])
@pytest.mark.parametrize(("keys", "most"), [(1, 1), (3, 3), (20, TURNS)])
async def test_few_files_are_in_memory_whatever_is_asked_for_at_once(
    references: ReferenceLoader, monkeypatch: pytest.MonkeyPatch, source: str | StoredImage, keys: int, most: int
) -> None:
    files = FileCounter.install(monkeypatch)
    calls = [(f"key_{i % keys}", (Reference("image[0]", source),) * 2) for i in range(20)]
    loaded = await asyncio.gather(*(references.load(*call) for call in calls))
    assert [len(images) for images in loaded] == [2] * 20
    assert files.read == 40
    assert files.most <= most


async def test_slow_downloads_leave_a_keys_other_images_and_other_keys_alone(
    references: ReferenceLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, answered = 0, asyncio.Event()

    async def fetch_slowly(url: str, rules: FetchRules) -> bytes:
        nonlocal running
        running += 1
        await answered.wait()
        running -= 1
        return png()

    def download(key: str) -> "asyncio.Task[object]":
        return asyncio.create_task(references.load(key, (Reference("image[0]", "https://slow.test/a.png"),)))

    monkeypatch.setattr(loading, "fetch_image", fetch_slowly)
    tasks = [download("key_1") for _ in range(2 * DOWNLOADS_PER_KEY)]
    await eventually(lambda: running == DOWNLOADS_PER_KEY)
    await references.load("key_1", (Reference("image[1]", StoredImage(THERE)),))  # the others had the time to begin
    assert running == DOWNLOADS_PER_KEY
    tasks += [download(f"key_{i}") for i in range(2, 2 + TURNS)]
    await eventually(lambda: running == TURNS)
    await references.load("key_9", (Reference("image[1]", StoredImage(THERE)),))
    assert running == TURNS
    answered.set()
    assert len(await asyncio.gather(*tasks)) == 2 * DOWNLOADS_PER_KEY + TURNS
