"""Bodies and answers of the admin routes."""

from typing import Literal

from pydantic import BaseModel, Field

from server.schemas.answer import Answer


class SwapRequest(BaseModel):
    """POST /admin/swap."""

    model: str = Field(min_length=1)
    checkpoint: str = Field(min_length=1)


class CatalogChange(Answer):
    """What a swap or a reload changed. `loaded` describes each new checkpoint, by name."""

    object: Literal["catalog.change"] = "catalog.change"
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    loaded: dict[str, str]
    saved: bool
