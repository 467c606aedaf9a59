"""Models as Google's clients list them: with their methods, and what they read at most."""

from collections.abc import Mapping
from typing import NotRequired

from typing_extensions import TypedDict

from server.errors import BadRequest
from server.http.dialect import Cards
from server.schemas.models import ChatCard, ModelCard

DEFAULT_SIZE, MAX_SIZE = 50, 1000


class GeminiCard(TypedDict):
    """A model. One whose limits are not known here has none."""

    name: str
    version: str
    displayName: str
    description: str
    inputTokenLimit: NotRequired[int]
    outputTokenLimit: NotRequired[int]
    supportedGenerationMethods: list[str]


class GeminiCards(TypedDict):
    """A page of models."""

    models: list[GeminiCard]
    nextPageToken: NotRequired[str]


def gemini_card(card: ModelCard | ChatCard) -> GeminiCard:
    """Return a model in this protocol's shape."""
    chats = isinstance(card, ChatCard)
    made: GeminiCard = {
        "name": f"models/{card.id}",
        "version": "1",
        "displayName": card.id,
        "description": "A chat model." if isinstance(card, ChatCard) else f"An image model ({card.tier}).",
        "supportedGenerationMethods": [
            "generateContent",
            "streamGenerateContent",
            *(["countTokens"] if chats else []),
        ],
    }
    if isinstance(card, ChatCard) and card.context_length is not None:
        made |= {"inputTokenLimit": card.context_length, "outputTokenLimit": card.context_length}
    return made


def gemini_cards(cards: Cards, query: Mapping[str, str]) -> GeminiCards:
    """Return a page of the models; its token is the number of the first. Raises BadRequest."""
    size = _number("pageSize", query.get("pageSize", "") or query.get("page_size", ""), DEFAULT_SIZE)
    first = _number("pageToken", query.get("pageToken", "") or query.get("page_token", ""), 0)
    size = min(size or DEFAULT_SIZE, MAX_SIZE)
    page: GeminiCards = {"models": [gemini_card(card) for card in cards[first : first + size]]}
    if first + size < len(cards):
        page["nextPageToken"] = str(first + size)
    return page


def _number(name: str, sent: str, default: int) -> int:
    if not sent:
        return default
    if not (sent.isascii() and sent.isdecimal() and len(sent) < 10):
        raise BadRequest(f"Invalid '{name}': expected a number, or the token of a page.", param=name)
    return int(sent)
