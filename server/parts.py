"""The parts of a running server that flows are built on, in five records.

A flow takes a record if it uses several of its fields, else the field. Nothing is global: two servers can live in one
process.
"""

from dataclasses import dataclass

from server.accounts.batches import BatchStore
from server.accounts.call_log import CallLog
from server.accounts.calls import CallStore
from server.accounts.claims import ClaimStore
from server.accounts.conversations import ConversationStore
from server.accounts.db import Database
from server.accounts.gateways import GatewayStore
from server.accounts.ledger import Ledger
from server.accounts.operators import ConsoleSessions
from server.accounts.responses import ResponseStore
from server.accounts.results import ResultStore
from server.accounts.stored_files import StoredFiles
from server.accounts.webhooks import WebhookStore
from server.backends.engines import Engines
from server.backends.storage import Storage
from server.state.active_calls import ActiveCalls
from server.state.active_chats import ActiveChats
from server.state.active_responses import ActiveResponses
from server.state.body_budget import BodyBudget
from server.state.expected_retries import ExpectedRetries
from server.state.image_backlog import Backlog
from server.state.served import ServedCatalog, ServedPolicy
from server.state.tasks import BackgroundTasks, Drain
from server.telemetry.crash_points import CrashPoints
from server.telemetry.metrics import Metrics
from server.telemetry.tracing import Tracing

__all__ = ["Engines", "Running", "Served", "Stores", "Telemetry"]


@dataclass(frozen=True, slots=True)
class Stores:
    """The state that outlives the process: the tables of the database, and the files."""

    database: Database
    gateways: GatewayStore
    claims: ClaimStore | None  # if there may be several gateways
    ledger: Ledger
    calls: CallStore
    responses: ResponseStore
    conversations: ConversationStore
    batches: BatchStore
    call_log: CallLog
    results: ResultStore
    stored_files: StoredFiles  # names of what is in `files`
    webhooks: WebhookStore
    console_sessions: ConsoleSessions
    files: Storage


@dataclass(frozen=True, slots=True)
class Running:
    """The work that runs and waits in this process, and ends with it."""

    calls: ActiveCalls
    chats: ActiveChats
    responses: ActiveResponses
    backlog: Backlog
    expected_retries: ExpectedRetries
    background: BackgroundTasks
    bodies: BodyBudget
    drain: Drain

    @property
    def total(self) -> int:
        """Return how many calls, keyed chats and responses run: tasks of the server, not of a connection."""
        return len(self.calls) + len(self.chats) + len(self.responses)


@dataclass(frozen=True, slots=True)
class Served:
    """The models that keys may use, and how they are moderated. Operators may change both while the server runs."""

    catalog: ServedCatalog
    policy: ServedPolicy


@dataclass(frozen=True, slots=True)
class Telemetry:
    """How the server is observed and tested."""

    version: str
    started_at: float  # in Unix seconds
    metrics: Metrics
    tracing: Tracing
    crash_points: CrashPoints
