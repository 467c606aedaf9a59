"""References as text: results of this server, and what is neither one nor a URL to fetch."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.ledger import Call, Ledger, StoredResult
from server.backends.storage import Storage
from server.errors import BadRequest
from server.flows.references import Reference, load_references
from server.services import Services
from server.settings import Settings

NAME = f"{'0' * 32}.png"


@pytest.fixture
def services(tmp_path: Path) -> Services:
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.migrate()
    ledger = Ledger(database, owner="me", lease_s=60)
    key, _ = create_key(database, "one", frozenset({"alpha"}))
    ledger.hold(Call("call_1", key.id, "images.generations", "alpha", 1000))
    ledger.capture("call_1", [StoredResult(NAME, "image/png", 8, 8, 100, "0" * 64, 0)])
    made = SimpleNamespace(ledger=ledger, storage=Storage(tmp_path / "results"), settings=Settings())
    return cast(Services, made)


@pytest.mark.parametrize(
    ("source", "says", "code"),
    [
        ("https://[x", "not a URL that can be read", "invalid_image_url"),
        ("https://elsewhere.test/a.png", "DARKROOM_FETCH", "invalid_image_url"),
        (f"http://localhost:8080/cdn/{NAME}", "has been deleted", "result_not_found"),
    ],
)
async def test_what_can_not_be_had_is_a_400_that_names_the_field(
    services: Services, source: str, says: str, code: str
) -> None:
    with pytest.raises(BadRequest, match=says) as raised:
        await load_references(services, (Reference("image[0]", source),))
    assert (raised.value.param, raised.value.code) == ("image[0]", code)
