"""Items of responses and of conversations, as they are stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Side = Literal["input", "output"]


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as stored. An image is not in the body: `image` is the name of its file."""

    side: Side
    body: Mapping[str, Any]
    image: str | None = None

    @property
    def id(self) -> str:
        """Return the item's id."""
        return str(self.body["id"])

    @property
    def files(self) -> list[str]:
        """Return the names of the stored files that the item refers to."""
        content = self.body.get("content")
        parts = content if isinstance(content, list) else []
        return [*([self.image] if self.image else []), *(part["file"] for part in parts if "file" in part)]
