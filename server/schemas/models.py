"""The model list."""

from typing import Literal

from server.schemas.answer import Answer


class ModelCard(Answer):
    """An image model: OpenAI's four fields, and what a caller needs to choose it. `supports` is what its checkpoint has
    shown that it can do, empty until it is loaded."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    family: str
    group: str
    tier: str
    ratios: list[str]
    qualities: list[str]
    supports: list[str]
    max_references: int
    price: str
    currency: Literal["CNY"] = "CNY"


class ChatCard(Answer):
    """A chat model. `tools` and `vision` are null for an upstream's model: its abilities are not known here."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    group: str
    tools: bool | None
    vision: bool | None


class ModelList(Answer):
    """GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard | ChatCard]
