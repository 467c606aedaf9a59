"""References as text: results of this server, and URLs that can't be loaded."""

from pathlib import Path

import pytest

from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.ledger import BilledCall, Ledger, StoredResult
from server.backends.decoding.pool import DecoderPool
from server.backends.local_storage import LocalStorage
from server.errors import BadRequest
from server.flows.references import Reference, ReferenceLoader

NAME = f"{'0' * 32}.png"


@pytest.fixture
def references(tmp_path: Path) -> ReferenceLoader:
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.migrate()
    ledger = Ledger(database, owner="me", lease_s=60)
    key, _ = create_key(database, "one", frozenset({"alpha"}))
    ledger.hold(BilledCall("call_1", key.id, "images.generations", "alpha", 1000))
    ledger.capture("call_1", [StoredResult(NAME, "image/png", 8, 8, 100, "0" * 64, 0)])
    decoders = DecoderPool(tmp_path / "pixels")  # not started: no source here gets so far
    return ReferenceLoader(ledger, LocalStorage(tmp_path / "results"), decoders, fetch=False, fetch_timeout_s=1)


@pytest.mark.parametrize(
    ("source", "message", "code"),
    [
        ("https://[x", "not a URL that can be read", "invalid_image_url"),
        ("https://elsewhere.test/a.png", "DARKROOM_FETCH", "invalid_image_url"),
        (f"http://localhost:8080/cdn/{NAME}", "has been deleted", "result_not_found"),
    ],
)
async def test_a_reference_that_can_not_be_loaded_is_a_400_that_names_the_field(
    references: ReferenceLoader, source: str, message: str, code: str
) -> None:
    with pytest.raises(BadRequest, match=message) as raised:
        await references.load("key_1", (Reference("image[0]", source),))
    assert (raised.value.param, raised.value.code) == ("image[0]", code)
