"""The bases of what routes answer with: one object, or a list that comes in pages."""

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Value = TypeVar("Value")
OmittedIfNone = Annotated[Value | None, Field(exclude_if=lambda value: value is None)]  # for keys that may not be null


class Answer(BaseModel):
    """Every key is always sent, but for those marked OmittedIfNone. So the JSON schema requires those with a default
    too."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True, from_attributes=True)

    @classmethod
    def describe(cls, source: object, **others: Any) -> Self:
        """Build the answer of an object: each field has the attribute of its name, unless `others` have it."""
        names = [name for name in cls.model_fields if name not in others and hasattr(source, name)]
        return cls(**{name: getattr(source, name) for name in names}, **others)


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
    def of(cls, entries: Sequence[EntryT], limit: int | None = None) -> Self:
        """Build a page of entries with one more than the page has room for, if there are more; or a list of all."""
        data = list(entries[:limit])
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=data, first_id=first, last_id=last, has_more=len(entries) > len(data))
