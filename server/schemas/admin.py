"""Bodies and answers of the admin routes."""

from typing import Literal

from pydantic import BaseModel, Field

from server.schemas.answer import Answer

Setting = int | float | str | dict[str, bool | int | float | str] | None


class SwapRequest(BaseModel):
    """POST /admin/swap."""

    model: str = Field(min_length=1)
    checkpoint: str = Field(min_length=1)
    keep_settings: bool = False


class ChangedSetting(Answer):
    """A key of the catalog file that a swap changed, and why. `new` is null for one that it left out."""

    key: str
    old: Setting
    new: Setting
    why: str


class KeptSetting(Answer):
    """A key of the catalog file that a swap left as it was, and why."""

    key: str
    old: Setting
    why: str


class CatalogChange(Answer):
    """The changes of a swap, an undo or a reload. `loaded` describes each new checkpoint, by name; `settings` are those
    that a swap fitted to it, and `kept` those that have to do with it and stay."""

    object: Literal["catalog.change"] = "catalog.change"
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    loaded: dict[str, str]
    settings: tuple[ChangedSetting, ...]
    kept: tuple[KeptSetting, ...]
    saved: bool
