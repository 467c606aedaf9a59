"""Items of responses and of conversations, as they are stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Side = Literal["input", "output"]


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as stored. A picture is not in the body: `picture` is the name of its file."""

    side: Side
    body: Mapping[str, Any]
    picture: str | None = None

    @property
    def id(self) -> str:
        return str(self.body["id"])

    @property
    def files(self) -> list[str]:
        """The names of the stored files that the item refers to."""
        content = self.body.get("content")
        parts = content if isinstance(content, list) else []
        return [*([self.picture] if self.picture else []), *(part["file"] for part in parts if "file" in part)]
