"""The reports of the ledger, of refusals, of operators and of what keys have used."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from server.schemas.base import Answer, Listed, Listing, OmittedIfNone


class LedgerEntry(Listed):
    """A charge, with the team that its key had then; both of its fields are empty if that was none."""

    object: Literal["ledger.entry"] = "ledger.entry"
    created_at: float
    key_id: str
    key_name: str
    team_id: str
    team_name: str
    call_id: str
    model: str
    amount: str


class LedgerEntryList(Listing[LedgerEntry]):
    """A page of charges."""


class LedgerCheck(Answer):
    """Whether charges, holds, results and files agree: a line for each problem."""

    object: Literal["ledger.check"] = "ledger.check"
    clean: bool
    problems: list[str]


class RefusalEntry(Listed):
    """A request or result that the moderation policy refused."""

    object: Literal["refusal"] = "refusal"
    created_at: float
    call_id: str
    key_id: str
    key_name: str
    endpoint: str
    model: str
    stage: str
    policy: str
    category: str
    evidence: str


class RefusalList(Listing[RefusalEntry]):
    """A page of refusals."""


class AuditRecord(Listed):
    """A change that an operator made. Commands have the operator `cli:` and the system's user."""

    object: Literal["audit.entry"] = "audit.entry"
    created_at: float
    operator: str
    action: str
    target: str
    details: dict[str, Any]


class AuditList(Listing[AuditRecord]):
    """A page of changes."""


class OperatorEntry(Listed):
    """An admin key."""

    object: Literal["operator"] = "operator"
    name: str
    tail: str
    created_at: float
    revoked_at: float | None


class OperatorList(Listing[OperatorEntry]):
    """All operators with keys of their own, oldest first."""


class OperatorWithSecret(OperatorEntry):
    """A new operator. The secret is shown only now: the database stores its hash."""

    secret: str


class CreateOperator(BaseModel):
    """POST /admin/operators."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^:]+$")]


class UsageSums(Answer):
    """Calls, images and their amount are of charged image calls; chats and tokens are not billed."""

    calls: int
    images: int
    amount: str
    chats: int
    prompt_tokens: int
    completion_tokens: int


class UsageRow(UsageSums):
    """The sums of one group: it has the keys that were asked for with `by`. An empty `team_id` is no team."""

    team_id: OmittedIfNone[str] = None
    team_name: OmittedIfNone[str] = None
    key_id: OmittedIfNone[str] = None
    key_name: OmittedIfNone[str] = None
    month: OmittedIfNone[str] = None
    day: OmittedIfNone[str] = None
    model: OmittedIfNone[str] = None


class UsageReport(Answer):
    """The groups that have any, and the sum of them all."""

    object: Literal["list"] = "list"
    data: list[UsageRow]
    total: UsageSums


class CallEntry(Listed):
    """A request that ran a model, or was refused. `job` is the image call or response that it began or found.

    `code`, `message` and `param` are of its error. `queue_s` and `run_s` are of its job; `price` is the charge for this
    request; `replayed`: it got the answer of an earlier request.
    """

    object: Literal["call"] = "call"
    job: str | None
    key_id: str
    key_name: str
    endpoint: str
    model: str | None
    status: int
    code: str | None
    message: str | None
    param: str | None
    created_at: float
    seconds: float
    queue_s: float | None
    run_s: float | None
    price: str
    images: int
    prompt_tokens: int | None
    completion_tokens: int | None
    replayed: bool


class CallList(Listing[CallEntry]):
    """A page of calls."""


class CallDetails(CallEntry):
    """A call with its prompt and parameters, while the server keeps those."""

    prompt: str | None
    parameters: dict[str, Any] | None


class ResultEntry(Listed):
    """A stored image. `seed`, `prompt` and `parameters` are null unless the server keeps prompts; `parents` are the ids
    of results among its references. `endpoint` is that of the call that drew it."""

    object: Literal["result"] = "result"
    url: str
    thumbnail: str
    call_id: str
    model: str
    endpoint: str
    created_at: float
    width: int
    height: int
    media_type: str
    bytes: int
    seed: int | None
    prompt: str | None
    parameters: dict[str, Any] | None
    parents: list[str]
    favourite: bool


class ResultList(Listing[ResultEntry]):
    """A page of images."""


class DeletedResult(Answer):
    """The image is gone; its charge stays."""

    object: Literal["result.deleted"] = "result.deleted"
    id: str
    deleted: Literal[True] = True


class ResponseSummary(Listed):
    """A stored response. `title` is the one that was given to it, or the beginning of the user's text."""

    object: Literal["response.summary"] = "response.summary"
    model: str | None
    status: str
    created_at: float
    previous_response_id: str | None
    title: str


class ResponseTitle(BaseModel):
    """The title of a response; an empty one is the beginning of the user's text again."""

    model_config = ConfigDict(extra="forbid")

    title: Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)]


class DeletedResponses(Answer):
    """Responses that are gone; their charges and images stay."""

    object: Literal["response.tree.deleted"] = "response.tree.deleted"
    id: str
    responses: list[str]
    deleted: Literal[True] = True


class ResponseSummaryList(Listing[ResponseSummary]):
    """A page of responses."""
