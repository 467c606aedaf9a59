"""What a running server is made of: built once by `create_app`, handed down, never global."""

import asyncio
from dataclasses import dataclass, field

from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from pipelines.catalog import Catalog
from pipelines.chat_types import ChatEvent, ChatJob, CountJob
from pipelines.classify_types import ClassifyEvent, ClassifyJob
from pipelines.types import Event, ImageJob
from server.accounts.calls import CallBook
from server.accounts.db import Database
from server.accounts.ledger import Ledger
from server.accounts.responses import ResponseBook
from server.engine_host import EngineHost
from server.faults import Faults
from server.flows.backlog import Backlog
from server.flows.finish import LooseEnds
from server.flows.places import Places
from server.flows.responses.live import LiveResponses
from server.flows.running import RunningCalls
from server.moderation.policy import Policy
from server.observe import Metrics
from server.settings import Settings
from server.storage import Storage
from server.upstream import Upstreams


@dataclass(slots=True)
class Services:
    """Everything a flow may use. Only the catalog ever changes: a call goes on with the model that it found there."""

    settings: Settings
    catalog: Catalog
    database: Database
    ledger: Ledger
    book: CallBook
    storage: Storage
    images: EngineHost[ImageJob, Event]
    chat: EngineHost[ChatJob | CountJob, ChatEvent]  # runs only if the catalog has local chat models
    upstreams: Upstreams
    classifiers: EngineHost[ClassifyJob, ClassifyEvent]  # started only when the policy has some
    policy: Policy
    calls: RunningCalls
    backlog: Backlog
    responses: ResponseBook
    live: LiveResponses
    metrics: Metrics
    faults: Faults
    rates: MovingWindowRateLimiter = field(default_factory=lambda: MovingWindowRateLimiter(MemoryStorage()))
    places: Places = field(default_factory=Places)
    loose_ends: LooseEnds = field(default_factory=LooseEnds)
    catalog_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while the catalog is being changed
