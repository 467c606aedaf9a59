"""The bodies of /v1/moderations, as OpenAI's SDKs send and read them."""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from server.schemas.answer import Answer
from server.schemas.chat_messages import AnyUserPart, BoundedText, LenientModel

MAX_INPUTS = 128
Texts = Annotated[list[BoundedText], Field(min_length=1, max_length=MAX_INPUTS)]
Parts = Annotated[list[AnyUserPart], Field(min_length=1, max_length=MAX_INPUTS)]
INPUT = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "object"}},
    ]
}
InputType = Literal["text", "image"]


class ModerationBody(LenientModel):
    """POST /v1/moderations: a text, several texts with a result each, or texts and images with one result together."""

    input: Annotated[Any, WithJsonSchema(INPUT)]
    model: str | None = None


class TextInputs(LenientModel):
    """Texts, each judged by itself."""

    input: Texts


class PartInputs(LenientModel):
    """Texts and images that are judged together."""

    input: Parts


class ModerationResult(Answer):
    """What the policy says of an input: which categories it breaches, and how sure that is. `policies` are the names of
    the rules that it breaches, an addition of this server."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[InputType]]
    policies: list[str]


class Moderation(Answer):
    """The answer: a result for each text, or one for all parts."""

    id: str
    model: str
    results: list[ModerationResult]
