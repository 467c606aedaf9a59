"""The recount of `make chaos` finds what it is there to find."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recount import Books, ReadImage, from_folder, read_books, recount, unsettled
from server.accounts.calls import CallId, CallStore
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.ledger import BilledCall, Ledger
from server.accounts.results import StoredResult
from tests.unit.accounts.helpers import capture

NAME = "0" * 32 + ".png"
IMAGE = {"call_id": "c1", "name": NAME, "sha256": hashlib.sha256(b"pixels").hexdigest()}
CHARGE = {
    "call_id": "c1", "key_id": "k1", "amount": 1000, "state": "captured", "price": 1000, "idempotency_key": "i1",
}  # fmt: skip
LEFT = {"holds": 0, "running calls": 0, "running responses": 0}


@pytest.fixture
def results(tmp_path: Path) -> ReadImage:
    (tmp_path / "00").mkdir()
    (tmp_path / "00" / NAME).write_bytes(b"pixels")
    return from_folder(tmp_path)


def books(**changes: Any) -> Books:
    return Books(**{"charges": [CHARGE], "images": [IMAGE], "budgets": {"k1": 1000}, "left": LEFT, **changes})


def test_sound_books_have_no_problem(results: ReadImage) -> None:
    assert recount(books(), results, {"i1"}, {"i1"}) == []
    assert recount(books(), results, set(), {"i1"}) == []  # its answer was cut off
    assert unsettled(books()) == []


@pytest.mark.parametrize(
    ("changes", "delivered", "unknown", "problem"),
    [
        ({}, {"i1", "i2"}, {"i1", "i2"}, "i2 was answered and is not charged"),
        ({"charges": [CHARGE, CHARGE]}, {"i1"}, {"i1"}, "i1 is charged 2 times"),
        ({}, set(), set(), "i1 failed and is charged"),
        ({"images": []}, {"i1"}, {"i1"}, "charged without an image"),
        ({"images": [IMAGE, {**IMAGE, "call_id": "c2"}]}, {"i1"}, {"i1"}, "c2 has images and no charge"),
        ({"images": [{**IMAGE, "sha256": "0"}]}, {"i1"}, {"i1"}, "missing or damaged"),
        ({"images": [{**IMAGE, "name": "1" * 32 + ".png"}]}, {"i1"}, {"i1"}, "missing or damaged"),
        ({"charges": [{**CHARGE, "amount": 1}]}, {"i1"}, {"i1"}, "charged 1"),
        ({"charges": [{**CHARGE, "state": "void"}]}, {"i1"}, {"i1"}, "c1 is void"),
        ({"budgets": {"k1": 999}}, {"i1"}, {"i1"}, "k1 spent 1000 of 999"),
    ],
)
def test_every_wrong_is_found(
    results: ReadImage, changes: dict[str, Any], delivered: set[str], unknown: set[str], problem: str
) -> None:
    assert any(problem in line for line in recount(books(**changes), results, delivered, unknown))


def test_the_books_are_read_from_the_database(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.migrate()
    key, _ = create_key(database, "a", frozenset({"alpha"}), budget=5000)
    ledger, store = Ledger(database, "me"), CallStore(database, "me", 60)
    for call_id in ("c1", "c2"):
        call = CallId(call_id, key.id, "images.generations", "print", f"key of {call_id}")
        ledger.hold(BilledCall(call_id, key.id, "images.generations", "alpha", 1000), [store.begin_write(call)])
    stored = StoredResult(NAME, "image/png", 8, 8, 6, IMAGE["sha256"], 0)
    capture(ledger, "c1", [stored], store.success_write("c1", {}, delivered=True))
    found = read_books(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.dispose()
    assert [(charge["call_id"], charge["idempotency_key"]) for charge in found.charges] == [("c1", "key of c1")]
    assert found.budgets == {key.id: 5000}
    assert unsettled(found) == ["1 holds left", "1 running calls left"]
