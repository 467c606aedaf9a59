"""The books of a server, counted again from its database and its files, without the server's code."""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, create_engine, text

CHARGES = """
SELECT e.call_id, e.key_id, e.amount, h.state, h.price, c.idempotency_key, c.state AS call_state, c.endpoint
FROM entries e LEFT JOIN holds h ON h.call_id = e.call_id LEFT JOIN calls c ON c.id = e.call_id
"""
BUDGETS = "SELECT id, budget FROM keys WHERE budget IS NOT NULL"
LEFT = {
    "holds": "SELECT count(*) FROM holds WHERE state = 'held'",
    "running calls": "SELECT count(*) FROM calls WHERE state = 'running'",
    "running responses": "SELECT count(*) FROM responses WHERE state IN ('queued', 'in_progress')",
}

ReadImage = Callable[[str], bytes | None]  # by its name; None if it is not there


@dataclass(frozen=True)
class Books:
    """What the database says: charges and images, and how much is left unsettled, by what it is."""

    charges: list[Mapping[str, Any]]
    images: list[Mapping[str, Any]]
    budgets: dict[str, int]
    left: dict[str, int]


def read_books(database_url: URL | str) -> Books:
    """All tables as of one moment, since calls go on."""
    engine = create_engine(database_url)
    with contextlib.closing(engine.connect()) as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")  # Python's driver begins a transaction only before it writes
        else:
            connection.execution_options(isolation_level="REPEATABLE READ")
        books = Books(
            [dict(row) for row in connection.execute(text(CHARGES)).mappings()],
            [dict(row) for row in connection.execute(text("SELECT * FROM results")).mappings()],
            {row.id: row.budget for row in connection.execute(text(BUDGETS))},
            {name: int(connection.execute(text(query)).scalar_one()) for name, query in LEFT.items()},
        )
    engine.dispose()
    return books


def from_folder(results: Path) -> ReadImage:
    """How images in a folder are read."""

    def read(name: str) -> bytes | None:
        file = results / name[:2] / name
        return file.read_bytes() if file.is_file() else None

    return read


def recount(books: Books, read: ReadImage, delivered: Collection[str], unknown: Collection[str]) -> list[str]:
    """What is wrong, one line each. `delivered` are the Idempotency-Keys of image calls that were answered with 200,
    `unknown` of those whose answer was cut off, which may be charged or not."""
    charged = Counter(charge["idempotency_key"] for charge in books.charges if charge["idempotency_key"])
    return [
        *[f"{key} was answered and is not charged" for key in delivered if not charged[key]],
        *[f"{key} is charged {count} times" for key, count in charged.items() if count > 1],
        *[f"{key} failed and is charged" for key in charged if key not in delivered and key not in unknown],
        *_without_images(books),
        *_wrong_files(books, read),
        *_overspent(books),
    ]


def unsettled(books: Books) -> list[str]:
    """What is left although nothing runs."""
    return [f"{count} {name} left" for name, count in books.left.items() if count]


def _without_images(books: Books) -> list[str]:
    drawn = {image["call_id"] for image in books.images}
    wrong = [c for c in books.charges if c["state"] != "captured" or c["amount"] != c["price"]]
    return [
        *[
            f"{charge['call_id']} is charged without an image"
            for charge in books.charges
            if charge["call_id"] not in drawn
        ],
        *[f"{charge['call_id']} is {charge['state']}, and charged {charge['amount']}" for charge in wrong],
        *[f"{call_id} has images and no charge" for call_id in drawn - {c["call_id"] for c in books.charges}],
    ]


def _wrong_files(books: Books, read: ReadImage) -> list[str]:
    def is_wrong(image: Mapping[str, Any]) -> bool:
        content = read(image["name"])
        return content is None or hashlib.sha256(content).hexdigest() != image["sha256"]

    return [f"{image['name']} is missing or damaged" for image in books.images if is_wrong(image)]


def _overspent(books: Books) -> list[str]:
    spent: Counter[str] = Counter()
    for charge in books.charges:
        spent[charge["key_id"]] += charge["amount"]
    return [f"{key} spent {spent[key]} of {budget}" for key, budget in books.budgets.items() if spent[key] > budget]
