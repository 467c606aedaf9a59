"""What a running server is made of: built once by `create_app`, handed down, never global."""

import asyncio
from dataclasses import dataclass, field

from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from pipelines.catalog.images import Catalog
from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from pipelines.protocol.classify import ClassifyEvent, ClassifyJob
from pipelines.protocol.images import Event, ImageJob
from server.accounts.calls import CallBook
from server.accounts.db import Database
from server.accounts.ledger import Ledger
from server.accounts.responses import ResponseBook
from server.backends.engine_host import EngineHost
from server.backends.storage import Storage
from server.backends.upstream import Upstreams
from server.moderation.policy import Policy
from server.settings import Settings
from server.state.active_calls import RunningCalls
from server.state.active_responses import LiveResponses
from server.state.background_tasks import LooseEnds
from server.state.concurrency import Places
from server.state.image_backlog import Backlog
from server.telemetry.crash_points import Faults
from server.telemetry.metrics import Metrics


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
