"""Builds the five records of the parts that flows are built on."""

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pipelines.checkpoints.folder.sums import Digests
from pipelines.checkpoints.folder.versions import files_version
from pipelines.protocol.machine import extra_command
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
from server.backends.decoding.pool import KILL_REASONS, DecoderPool
from server.backends.engines import build_engines
from server.backends.object_storage import open_storage
from server.backends.proxies import proxy_for
from server.backends.upstream import UpstreamClient
from server.backends.worker_pool import WorkerPool
from server.catalog.images import Catalog
from server.errors import StartError
from server.flows.catalog.start import compare_weights
from server.moderation.policy import Policy, PolicyError, load_policy
from server.parts import Engines, Running, Served, Stores, Telemetry
from server.settings import Settings
from server.state.active_calls import RETRY_WINDOW_S, ActiveCalls
from server.state.active_chats import ActiveChats
from server.state.active_responses import ActiveResponses
from server.state.body_budget import BodyBudget
from server.state.expected_retries import ExpectedRetries
from server.state.image_backlog import Backlog
from server.state.served import ServedCatalog, ServedPolicy
from server.state.tasks import BackgroundTasks, Drain
from server.telemetry.crash_points import CrashPoints
from server.telemetry.engine_metrics import DecoderCollector
from server.telemetry.metrics import Metrics
from server.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from server.backends.cluster.ray_cluster import RayCluster


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that the functions of this package hand on to each other."""

    settings: Settings
    stores: Stores
    engines: Engines
    running: Running
    served: Served
    telemetry: Telemetry


def build_parts(settings: Settings, catalog: Catalog) -> Parts:
    """Build the five records. Raises StartError for a policy, an upstream's key or a layout that can't be used."""
    telemetry = _build_telemetry(settings)
    served = _build_served(settings, catalog)
    engines = _build_engines(settings, served)
    telemetry.metrics.registry.register(DecoderCollector(KILL_REASONS, engines.decoders.ended))
    stores = _build_stores(settings, telemetry.crash_points)
    return Parts(settings, stores, engines, _build_running(settings, engines.image), served, telemetry)


def _build_telemetry(settings: Settings) -> Telemetry:
    return Telemetry(
        version("darkroom"),
        time.time(),
        Metrics(),
        Tracing(settings.tracing, proxy_for(settings.tracing or "", settings.proxy)),
        CrashPoints(settings.crash_at),
    )


def _build_served(settings: Settings, catalog: Catalog) -> Served:
    try:
        policy = policy_loader(settings)(settings.moderation, groups=catalog.groups)
    except PolicyError as error:
        raise StartError(f"The policy of DARKROOM_MODERATION is refused:\n{error}") from error
    return Served(ServedCatalog(catalog), ServedPolicy(policy))


def policy_loader(settings: Settings) -> Callable[..., Policy]:
    """Return `load_policy` for this server: where engines are other servers' too, sums tell classifiers apart."""
    version_of = files_version if settings.gateway_url is None else Digests(settings.weight_digests).version
    return partial(load_policy, weights=settings.weights, version_of=version_of)


def _build_engines(settings: Settings, served: Served) -> Engines:
    catalog = served.catalog.current
    upstreams = UpstreamClient(catalog.upstreams, os.environ, settings.job_time_limit_s, settings.proxy)
    cluster = _open_cluster(settings, tuple(catalog.models)) if settings.cluster is not None else None
    classifiers = served.policy.current.checkpoints
    return build_engines(settings, catalog, classifiers, upstreams, DecoderPool(settings.pixels), cluster)


def _open_cluster(settings: Settings, models: tuple[str, ...]) -> "RayCluster":
    """Connect to Ray, for the engines of cluster.toml. Raises StartError."""
    if settings.cluster is None or settings.gateway_url is None:
        raise StartError("DARKROOM_CLUSTER is for one of several servers: set DARKROOM_GATEWAY_URL too.")
    if not settings.cluster.is_file():
        path = settings.cluster
        raise StartError(f"DARKROOM_CLUSTER names cluster.toml, and {path} is no file. RAY_ADDRESS says where Ray is.")
    if find_spec("ray") is None:
        raise StartError(f"DARKROOM_CLUSTER needs Ray, which is not installed: {extra_command('cluster')}")
    from server.backends.cluster.engines_file import engines_hash, read_engines
    from server.backends.cluster.node_properties import describe_node
    from server.backends.cluster.ray_cluster import RayCluster

    database = settings.database_url.render_as_string(hide_password=False)
    tables = read_engines(settings.cluster, models)
    return RayCluster(tables, describe_node(settings, engines_hash(tables)), partial(compare_weights, database))


def _build_stores(settings: Settings, crash_points: CrashPoints) -> Stores:
    database, owner = Database(settings.database_url), uuid.uuid4().hex
    ledger = Ledger(database, owner=owner, lease_s=settings.lease_s, crash_hook=crash_points.hit)
    responses, conversations = ResponseStore(database, owner), ConversationStore(database)
    results = ResultStore(database)
    naming = (results.recorded, responses.referenced_files, conversations.referenced_files)  # records of files
    return Stores(
        database=database,
        gateways=GatewayStore(database, owner, settings.gateway_url, settings.lease_s),
        claims=ClaimStore(database, owner) if settings.gateway_url is not None else None,
        ledger=ledger,
        calls=CallStore(database, owner, settings.idempotency_s),
        responses=responses,
        conversations=conversations,
        batches=BatchStore(database, owner),
        call_log=CallLog(database),
        results=results,
        stored_files=StoredFiles(database),
        webhooks=WebhookStore(database),
        console_sessions=ConsoleSessions(database),
        files=open_storage(settings.images, lambda name: any(find([name]) for find in naming), settings.proxy),
    )


def _build_running(settings: Settings, worker_pool: WorkerPool) -> Running:
    backlog = Backlog(
        settings.max_queue,
        settings.max_queue_s,
        settings.max_queue_share_per_key,
        worker_pool.unit_s,
        worker_pool.able,
    )
    return Running(
        calls=ActiveCalls(),
        chats=ActiveChats(),
        responses=ActiveResponses(),
        backlog=backlog,
        expected_retries=ExpectedRetries(RETRY_WINDOW_S),
        background=BackgroundTasks(),
        bodies=BodyBudget(settings.body_memory_mib * 1024**2, settings.body_memory_per_key_mib * 1024**2),
        drain=Drain(),
    )
