"""The moderation policy as operators see and try it, and the bodies of /v1/moderations as OpenAI's SDKs have them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.dataclasses import dataclass

from server.schemas.base import Answer
from server.schemas.chat_messages import AnyUserPart, BoundedText, LenientModel


class PolicySummary(Answer):
    """The policy in use: the names of its rules, and its classifiers' checkpoints."""

    object: Literal["moderation.policy"] = "moderation.policy"
    path: str | None
    rules: list[str]
    classifiers: list[str]


class ModerationTestRequest(BaseModel):
    """POST /admin/moderation/test. Without `group`: of every group. `policy_toml`: a draft, in place of the policy in
    use."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=100_000)]
    group: str | None = None
    stage: Literal["input", "output"] = "input"
    low: bool = False
    policy_toml: Annotated[str, Field(max_length=1_000_000)] | None = None


@dataclass(frozen=True)
class PolicyFinding:
    """A breach of the policy, and the evidence for it."""

    policy: str
    category: str
    evidence: str


class ModerationTest(Answer):
    """The findings of the policy. Classifiers that are not in the policy in use are not loaded, and skipped."""

    object: Literal["moderation.test"] = "moderation.test"
    flagged: bool
    findings: list[PolicyFinding]
    skipped_classifiers: list[str]


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
