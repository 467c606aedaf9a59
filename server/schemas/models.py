"""The model list."""

from typing import Literal

from pydantic import BaseModel


class ModelCard(BaseModel):
    """One model, with what a caller needs to choose it beyond OpenAI's four fields."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    family: str
    group: str
    tier: str
    ratios: list[str]
    qualities: list[str]
    price: str
    currency: Literal["CNY"] = "CNY"


class ChatCard(BaseModel):
    """One chat model. What an upstream's model can do is not known here."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    group: str
    tools: bool | None
    vision: bool | None


class ModelList(BaseModel):
    """GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard | ChatCard]
