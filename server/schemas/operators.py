"""The reports of the ledger, of refusals and of operators, and the bodies that operators send."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.schemas.answer import Answer
from server.schemas.listing import Listed, Listing


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
