"""The base of lists that come in pages."""

from collections.abc import Sequence
from typing import Generic, Literal, Self, TypeVar

from server.schemas.answer import Answer


class Listed(Answer):
    """An entry of a list."""

    id: str


EntryT = TypeVar("EntryT", bound=Listed)


class Listing(Answer, Generic[EntryT]):
    """A page of a list: the next one begins `after` its `last_id`."""

    object: Literal["list"] = "list"
    data: list[EntryT]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, entries: Sequence[EntryT], limit: int) -> Self:
        """Build a page of entries with one more than the page has room for, if there are more."""
        data = list(entries[:limit])
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=data, first_id=first, last_id=last, has_more=len(entries) > limit)
