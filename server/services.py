"""The parts of a running server, built once by `create_app`. Nothing is global: two servers can live in one process."""

from dataclasses import dataclass

from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from pipelines.protocol.classify import ClassifyEvent, ClassifyJob
from server.accounts.call_log import CallLog
from server.accounts.calls import CallStore
from server.accounts.claims import ClaimStore
from server.accounts.console_sessions import ConsoleSessions
from server.accounts.conversations import ConversationStore
from server.accounts.db import Database
from server.accounts.gateways import GatewayStore
from server.accounts.ledger import Ledger
from server.accounts.responses import ResponseStore
from server.accounts.results import ResultStore
from server.backends.decoding.pool import DecoderPool
from server.backends.engine_host import EngineHost
from server.backends.fleet import Fleet
from server.backends.gateway_link import GatewayLink
from server.backends.storage import Storage
from server.backends.upstream import UpstreamClient
from server.flows.call_recording import CallRecorder
from server.flows.chat.chats import Chats
from server.flows.chat.keyed import KeyedChats
from server.flows.checkpoints import CheckpointManager
from server.flows.cluster_catalog.member import CatalogMember
from server.flows.images.idempotency import ImageCalls
from server.flows.images.jobs import ImageJobs
from server.flows.images.webhooks import Webhooks
from server.flows.moderation import Moderator
from server.flows.operators.policy import PolicyAdmin
from server.flows.operators.queue import JobQueue
from server.flows.operators.swaps import CatalogJobs
from server.flows.peers import Peers
from server.flows.pictured_chat.run import PicturedChat
from server.flows.proof import Proofs
from server.flows.rate_limits import RateLimiter
from server.flows.responses.compact import Compactor
from server.flows.responses.conversations import Conversations
from server.flows.responses.count_tokens import TokenCounter
from server.flows.responses.create import ResponseCreator
from server.flows.responses.retrieve import Responses
from server.flows.thumbnails import Thumbnails
from server.settings import Settings
from server.state.active_calls import ActiveCalls
from server.state.active_chats import ActiveChats
from server.state.active_responses import ActiveResponses
from server.state.background_tasks import BackgroundTasks
from server.state.body_budget import BodyBudget
from server.state.drain import Drain
from server.state.served_catalog import ServedCatalog
from server.state.served_policy import ServedPolicy
from server.telemetry.metrics import Metrics
from server.telemetry.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Services:
    """What routes, housekeeping and the command line use. Flows get the parts they need, never this record."""

    settings: Settings
    version: str
    started_at: float  # in Unix seconds
    catalog: ServedCatalog
    policy: ServedPolicy
    metrics: Metrics
    tracing: Tracing

    database: Database
    gateways: GatewayStore
    claims: ClaimStore | None  # this and the next three if there may be several gateways
    link: GatewayLink | None
    peers: Peers | None
    catalog_member: CatalogMember | None
    ledger: Ledger
    call_store: CallStore
    response_store: ResponseStore
    conversation_store: ConversationStore
    call_log: CallLog
    results: ResultStore
    storage: Storage
    decoders: DecoderPool

    image_engine: Fleet
    chat_engine: EngineHost[ChatJob | CountJob, ChatEvent]  # started only if the catalog has local chat models
    classifier_engine: EngineHost[ClassifyJob, ClassifyEvent]  # started only if the policy has classifiers
    upstreams: UpstreamClient

    active_calls: ActiveCalls
    active_chats: ActiveChats
    active_responses: ActiveResponses
    background: BackgroundTasks
    bodies: BodyBudget
    console_sessions: ConsoleSessions
    drain: Drain

    call_recorder: CallRecorder
    job_queue: JobQueue
    catalog_jobs: CatalogJobs
    policy_admin: PolicyAdmin
    thumbnails: Thumbnails
    limiter: RateLimiter
    moderator: Moderator
    chats: Chats
    keyed_chats: KeyedChats
    image_calls: ImageCalls
    image_jobs: ImageJobs
    webhooks: Webhooks
    response_creator: ResponseCreator
    responses: Responses
    conversations: Conversations
    pictured_chat: PicturedChat
    compactor: Compactor
    token_counter: TokenCounter
    checkpoints: CheckpointManager
    proofs: Proofs

    @property
    def running(self) -> int:
        """Calls, chats and responses that run."""
        return len(self.active_calls) + len(self.active_chats) + len(self.active_responses)
