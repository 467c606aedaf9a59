"""Models as Anthropic's clients list them: chat models, with what they read at most."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from typing_extensions import TypedDict

from server.errors import BadRequest
from server.http.dialect import Cards
from server.schemas.models import ChatCard, ModelCard

DEFAULT_LIMIT, MAX_LIMIT = 20, 1000


class ModelInfo(TypedDict):
    """A model. Its limits are null if they are not known here."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: None
    line: None
    deprecated_at: None
    retires_at: None


class ModelPage(TypedDict):
    """A page of models."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def model_info(card: ModelCard | ChatCard) -> ModelInfo:
    """Return a model in this protocol's shape."""
    context = card.max_input_tokens if isinstance(card, ChatCard) else None
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.id,
        "created_at": datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
        "capabilities": None,
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
    }


def model_page(cards: Cards, query: Mapping[str, str]) -> ModelPage:
    """Return a page of the chat models. Raises BadRequest."""
    models = [model_info(card) for card in cards if isinstance(card, ChatCard)]
    ids = [model["id"] for model in models]
    limit = _limit(query.get("limit", ""))
    first, end = 0, len(models)
    if after := query.get("after_id"):
        first = ids.index(after) + 1 if after in ids else end
    if before := query.get("before_id"):
        end = ids.index(before) if before in ids else first
        first = max(first, end - limit)
    page = models[first : min(end, first + limit)]
    more = first > 0 if query.get("before_id") else first + limit < end
    return {
        "data": page,
        "has_more": more,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _limit(sent: str) -> int:
    if not sent:
        return DEFAULT_LIMIT
    if not (sent.isascii() and sent.isdecimal() and 1 <= int(sent) <= MAX_LIMIT):
        raise BadRequest(f"Invalid 'limit': expected 1 to {MAX_LIMIT}.", param="limit")
    return int(sent)
