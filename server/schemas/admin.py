"""What the admin routes take and answer."""

from typing import Literal

from pydantic import BaseModel, Field


class SwapRequest(BaseModel):
    """POST /admin/swap."""

    model: str = Field(min_length=1)
    checkpoint: str = Field(min_length=1)


class CatalogChange(BaseModel):
    """What a swap or a reload did."""

    object: Literal["catalog.change"] = "catalog.change"
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    loaded: dict[str, str]
    saved: bool
