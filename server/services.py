"""The parts of a running server that routes, housekeeping and the command line use, built once by `create_app`.

Flows get the parts that they need, never this record.
"""

from dataclasses import dataclass

from server.backends.gateway_link import GatewayLink
from server.flows.admission import Admission
from server.flows.batches.batches import Batches
from server.flows.batches.run import BatchRunner
from server.flows.call_recording import CallRecorder
from server.flows.catalog.member import CatalogMember
from server.flows.chat.chats import Chats
from server.flows.chat.keyed import KeyedChats
from server.flows.chat_images.run import ChatImages
from server.flows.gateways import OtherGateways
from server.flows.images.idempotency import ImageCalls
from server.flows.images.jobs import ImageJobs
from server.flows.images.thumbnails import Thumbnails
from server.flows.images.webhooks import Webhooks
from server.flows.moderation import Moderations
from server.flows.operators.checkpoints import CheckpointManager
from server.flows.operators.comparison_grid import ComparisonGrids
from server.flows.operators.grid_jobs import GridJobs
from server.flows.operators.policy import PolicyAdmin
from server.flows.operators.queue import JobQueue
from server.flows.operators.sign_in import SignIn
from server.flows.operators.sleep import Sleeper
from server.flows.operators.swaps import CatalogJobs
from server.flows.responses.compact import Compactor
from server.flows.responses.conversations import Conversations
from server.flows.responses.count_tokens import TokenCounter
from server.flows.responses.create import ResponseCreator
from server.flows.responses.retrieve import Responses
from server.flows.storage.sweep import StorageSweep
from server.parts import Engines, Running, Served, Stores, Telemetry
from server.settings import Settings


@dataclass(frozen=True, slots=True)
class ImageFlows:
    """The flows of images."""

    calls: ImageCalls
    jobs: ImageJobs
    webhooks: Webhooks
    thumbnails: Thumbnails


@dataclass(frozen=True, slots=True)
class ChatFlows:
    """The flows of chat completions, of every protocol."""

    any_model: Chats
    keyed: KeyedChats
    image: ChatImages


@dataclass(frozen=True, slots=True)
class ResponseFlows:
    """The flows of the Responses API."""

    creator: ResponseCreator
    stored: Responses
    conversations: Conversations
    compactor: Compactor
    token_counter: TokenCounter


@dataclass(frozen=True, slots=True)
class BatchFlows:
    """The flows of batches: as keys see them, and what runs them."""

    flow: Batches
    runner: BatchRunner


@dataclass(frozen=True, slots=True)
class Operations:
    """The flows of operators."""

    call_recorder: CallRecorder
    job_queue: JobQueue
    catalog_jobs: CatalogJobs
    policy: PolicyAdmin
    checkpoints: CheckpointManager
    comparison_grids: ComparisonGrids
    grid_jobs: GridJobs
    sleeper: Sleeper
    storage_sweep: StorageSweep


@dataclass(frozen=True, slots=True)
class Cluster:
    """The parts of a server that is one of several."""

    link: GatewayLink
    other_gateways: OtherGateways
    member: CatalogMember


@dataclass(frozen=True, slots=True)
class Services:
    """A server: its settings, the records of its parts, and the flows that stand on them."""

    settings: Settings
    stores: Stores
    engines: Engines
    running: Running
    served: Served
    telemetry: Telemetry
    cluster: Cluster | None  # if there may be several gateways
    admission: Admission
    images: ImageFlows
    chats: ChatFlows
    responses: ResponseFlows
    batches: BatchFlows
    moderations: Moderations
    sign_in: SignIn | None  # with accounts of the organisation
    operations: Operations
