"""The moderation policy as operators see and try it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from server.schemas.answer import Answer


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
