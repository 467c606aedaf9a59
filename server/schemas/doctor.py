"""The findings of `darkroom doctor`."""

from typing import Literal

from server.schemas.answer import Answer


class Finding(Answer):
    """A check. `ok` null: nothing is wrong, but look at it."""

    name: str
    ok: bool | None
    detail: str


class Findings(Answer):
    """All checks."""

    object: Literal["list"] = "list"
    data: list[Finding]
