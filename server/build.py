"""Builds the parts of a server from its settings, from the database upwards. Nothing is started here."""

import os
import time
import uuid
from dataclasses import dataclass
from importlib.metadata import version

from pipelines.catalog.digests import Digests
from pipelines.catalog.images import Catalog
from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from pipelines.protocol.classify import ClassifyEvent, ClassifyJob
from server.accounts.call_log import CallLog
from server.accounts.calls import CallStore
from server.accounts.catalogs import CatalogStore
from server.accounts.claims import ClaimStore
from server.accounts.console_sessions import ConsoleSessions
from server.accounts.conversations import ConversationStore
from server.accounts.db import Database
from server.accounts.gateways import GatewayStore
from server.accounts.ledger import Ledger
from server.accounts.responses import ResponseStore
from server.accounts.results import ResultStore
from server.accounts.webhooks import WebhookStore
from server.backends.decoding.pool import KILL_REASONS, DecoderPool
from server.backends.engine_host import EngineHost
from server.backends.engines import build_engines
from server.backends.fleet import Fleet
from server.backends.gateway_link import GatewayLink
from server.backends.local_storage import LocalStorage
from server.backends.open_storage import open_storage
from server.backends.signing import open_signer
from server.backends.storage import Storage
from server.backends.upstream import UpstreamClient
from server.errors import StartError
from server.flows.call_recording import CallRecorder
from server.flows.catalog_edit import EditHistory
from server.flows.catalog_switch import CatalogSwitch
from server.flows.catalog_update import CatalogUpdater, FileCatalogUpdater
from server.flows.chat.any_model import AnyModelChat
from server.flows.chat.complete import ChatCompletions
from server.flows.chat.idempotency import KeyedChats
from server.flows.chat.run import ChatRunner
from server.flows.chat.upstream import UpstreamChat
from server.flows.checkpoints import CheckpointManager
from server.flows.cluster_catalog.member import CatalogMember
from server.flows.cluster_catalog.start import StartCatalog
from server.flows.cluster_catalog.update import ClusterCatalogUpdater
from server.flows.images.create import ImageCreator
from server.flows.images.idempotency import ImageCalls
from server.flows.images.jobs import ImageJobs
from server.flows.images.webhooks import Webhooks
from server.flows.moderation import Moderator
from server.flows.operators.policy import PolicyAdmin
from server.flows.operators.queue import JobQueue, worker_reports
from server.flows.operators.swaps import CatalogJobs
from server.flows.peers import Peers
from server.flows.pictured_chat.run import PicturedChat
from server.flows.proof import Proofs
from server.flows.rate_limits import RateLimiter
from server.flows.references import ReferenceLoader
from server.flows.responses.compact import Compactor
from server.flows.responses.conversations import Conversations
from server.flows.responses.count_tokens import TokenCounter
from server.flows.responses.create import ResponseCreator
from server.flows.responses.history import History
from server.flows.responses.image_tool import ImageToolRunner
from server.flows.responses.planner import Planner
from server.flows.responses.retrieve import Responses
from server.flows.responses.tool_loop import ToolLoop
from server.flows.thumbnails import Thumbnails
from server.moderation.policy import PolicyError, load_policy
from server.services import Services
from server.settings import Settings
from server.state.active_calls import RETRY_WINDOW_S, ActiveCalls
from server.state.active_chats import ActiveChats
from server.state.active_responses import ActiveResponses
from server.state.background_tasks import BackgroundTasks
from server.state.body_budget import BodyBudget
from server.state.drain import Drain
from server.state.expected_retries import ExpectedRetries
from server.state.image_backlog import Backlog
from server.state.running_chats import RunningChats
from server.state.served_catalog import ServedCatalog
from server.state.served_policy import ServedPolicy
from server.telemetry.crash_points import CrashPoints
from server.telemetry.metrics import Metrics
from server.telemetry.tracing import Tracing


@dataclass(frozen=True, slots=True)
class _Base:
    """What flows are built on: settings, stores, engines and state."""

    settings: Settings
    catalog: ServedCatalog
    policy: ServedPolicy
    metrics: Metrics
    tracing: Tracing
    crash_points: CrashPoints
    database: Database
    gateways: GatewayStore
    claims: ClaimStore | None
    link: GatewayLink | None
    ledger: Ledger
    results: ResultStore
    call_store: CallStore
    response_store: ResponseStore
    conversation_store: ConversationStore
    storage: Storage
    decoders: DecoderPool
    image_engine: Fleet
    chat_engine: EngineHost[ChatJob | CountJob, ChatEvent]
    classifier_engine: EngineHost[ClassifyJob, ClassifyEvent]
    upstreams: UpstreamClient
    active_calls: ActiveCalls
    active_responses: ActiveResponses
    expected_retries: ExpectedRetries
    background: BackgroundTasks
    drain: Drain


def build_services(settings: Settings, start: StartCatalog) -> Services:
    """Raises StartError for a policy or an upstream key that can't be read."""
    base = _build_base(settings, start.catalog)
    backlog = Backlog(
        settings.max_queue,
        settings.max_queue_s,
        settings.max_queue_share_per_key,
        base.image_engine.unit_s,
        lambda: len(base.image_engine.alive),
    )
    running_chats = RunningChats()
    limiter = RateLimiter(
        base.active_calls,
        base.active_responses,
        running_chats,
        backlog,
        base.chat_engine,
        settings.max_running_per_key,
        base.claims,
        base.background,
    )
    moderator = Moderator(base.policy, base.classifier_engine, base.database, base.metrics)
    references = ReferenceLoader(
        base.results, base.storage, base.decoders, fetch=settings.fetch, fetch_timeout_s=settings.fetch_timeout_s
    )
    runner = ChatRunner(base.chat_engine, base.metrics, base.tracing, base.database, base.background)
    upstream_chat = UpstreamChat(base.upstreams, runner, base.metrics)
    completions = ChatCompletions(
        base.catalog,
        moderator,
        references,
        runner,
        time_limit_s=settings.job_time_limit_s,
        leave_out_pictures=settings.leave_out_pictures,
    )
    active_chats, call_log = ActiveChats(), CallLog(base.database)
    creator = _image_creator(base, references, moderator, backlog)
    image_calls = _image_calls(base, creator, limiter)
    history = History(base.response_store, base.conversation_store, base.storage, references)
    planner = Planner(base.catalog, history, references, creator, settings.job_time_limit_s)
    responses = Responses(
        base.active_responses, base.response_store, base.storage, base.expected_retries, base.gateways.owner
    )
    image_tool = ImageToolRunner(image_calls, creator, base.storage)
    checkpoints = CheckpointManager(settings.model_configs, settings.weights)
    loop = ToolLoop(runner, upstream_chat, moderator, image_tool, base.response_store, base.expected_retries)
    any_model_chat = AnyModelChat(completions, upstream_chat, moderator, limiter, base.drain)
    response_creator = _response_creator(base, history, planner, loop, responses, limiter)
    job_queue = JobQueue(
        base.active_calls,
        base.active_responses,
        running_chats,
        backlog,
        base.database,
        base.drain,
        lambda: worker_reports((*base.image_engine.hosts, base.chat_engine, base.classifier_engine)),
    )
    peers = Peers(base.gateways, base.link, base.database.clock) if base.link is not None else None
    member, updater = _catalog_updater(base, checkpoints, peers, start.version)
    return Services(
        settings=settings,
        version=version("darkroom"),
        started_at=time.time(),
        catalog=base.catalog,
        policy=base.policy,
        metrics=base.metrics,
        tracing=base.tracing,
        database=base.database,
        gateways=base.gateways,
        claims=base.claims,
        link=base.link,
        peers=peers,
        catalog_member=member,
        ledger=base.ledger,
        results=base.results,
        call_store=base.call_store,
        response_store=base.response_store,
        conversation_store=base.conversation_store,
        call_log=call_log,
        storage=base.storage,
        decoders=base.decoders,
        image_engine=base.image_engine,
        chat_engine=base.chat_engine,
        classifier_engine=base.classifier_engine,
        upstreams=base.upstreams,
        active_calls=base.active_calls,
        active_chats=active_chats,
        active_responses=base.active_responses,
        background=base.background,
        bodies=BodyBudget(settings.body_memory_mib * 1024**2, settings.body_memory_per_key_mib * 1024**2),
        console_sessions=ConsoleSessions(base.database),
        drain=base.drain,
        job_queue=job_queue,
        catalog_jobs=CatalogJobs(updater, base.database, base.background, base.gateways),
        policy_admin=_policy_admin(base, moderator),
        thumbnails=Thumbnails(base.storage, LocalStorage(settings.thumbnails), base.decoders),
        call_recorder=CallRecorder(
            call_log,
            base.background,
            refusals_per_minute=settings.logged_refusals_per_minute,
            keep_prompts=settings.keep_prompts,
        ),
        limiter=limiter,
        moderator=moderator,
        chat_completions=completions,
        upstream_chat=upstream_chat,
        any_model_chat=any_model_chat,
        keyed_chats=KeyedChats(active_chats, base.call_store, limiter, base.background, base.drain),
        image_calls=image_calls,
        webhooks=Webhooks(WebhookStore(base.database), settings.webhooks, settings.webhook_secret.read_bytes),
        image_jobs=ImageJobs(base.active_calls, base.call_store, base.storage, backlog, base.gateways.owner),
        response_creator=response_creator,
        responses=responses,
        conversations=Conversations(base.conversation_store, history, base.storage, limiter),
        pictured_chat=PicturedChat(image_calls, response_creator, base.storage, links=settings.links_in_chats),
        compactor=Compactor(base.catalog, history, any_model_chat, base.storage),
        token_counter=TokenCounter(base.catalog, history, planner, runner, limiter),
        checkpoints=checkpoints,
        proofs=Proofs(base.catalog, base.image_engine, checkpoints, settings.job_time_limit_s),
    )


def _build_base(settings: Settings, catalog: Catalog) -> _Base:
    try:
        policy = load_policy(settings.moderation, settings.weights, catalog.groups)
    except PolicyError as error:
        raise StartError(f"The policy of DARKROOM_MODERATION is refused:\n{error}") from error
    crash_points = CrashPoints(settings.crash_at)
    owner = uuid.uuid4().hex
    upstreams = UpstreamClient(catalog.upstreams, os.environ, settings.job_time_limit_s)
    decoders = DecoderPool(settings.pixels)
    engines = build_engines(settings, catalog, policy.checkpoints, upstreams, decoders)
    database = Database(settings.database_url)
    ledger = Ledger(database, owner=owner, lease_s=settings.lease_s, crash_hook=crash_points.hit)
    results, response_store = ResultStore(database), ResponseStore(database, owner)
    conversation_store = ConversationStore(database)
    naming = (results.recorded, response_store.needed, conversation_store.needed)  # records of files
    base = _Base(
        settings=settings,
        catalog=ServedCatalog(catalog),
        policy=ServedPolicy(policy),
        metrics=Metrics(),
        tracing=Tracing(settings.tracing),
        crash_points=crash_points,
        database=database,
        gateways=GatewayStore(database, owner, settings.gateway_url, settings.lease_s),
        claims=ClaimStore(database, owner) if settings.gateway_url is not None else None,
        link=_link(settings),
        ledger=ledger,
        results=results,
        call_store=CallStore(database, owner, settings.idempotency_s),
        response_store=response_store,
        conversation_store=conversation_store,
        storage=open_storage(settings.pictures, lambda name: any(find([name]) for find in naming)),
        decoders=decoders,
        image_engine=engines.image,
        chat_engine=engines.chat,
        classifier_engine=engines.classify,
        upstreams=upstreams,
        active_calls=ActiveCalls(),
        active_responses=ActiveResponses(),
        expected_retries=ExpectedRetries(RETRY_WINDOW_S),
        background=BackgroundTasks(),
        drain=Drain(),
    )
    base.metrics.track_decoders(KILL_REASONS, base.decoders.ended)
    return base


def _link(settings: Settings) -> GatewayLink | None:
    if settings.gateway_url is None or settings.cluster_secret is None:
        return None
    return GatewayLink(settings.cluster_secret.get_secret_value())


def _image_creator(base: _Base, references: ReferenceLoader, moderator: Moderator, backlog: Backlog) -> ImageCreator:
    return ImageCreator(
        catalog=base.catalog,
        engine=base.image_engine,
        references=references,
        moderator=moderator,
        backlog=backlog,
        ledger=base.ledger,
        results=base.results,
        call_store=base.call_store,
        webhooks=WebhookStore(base.database),
        storage=base.storage,
        metrics=base.metrics,
        tracing=base.tracing,
        background=base.background,
        crash_points=base.crash_points,
        max_n=base.settings.max_n,
        answers_with_bytes=base.settings.answers_with_bytes,
        time_limit_s=base.settings.job_time_limit_s,
        keep_prompts=base.settings.keep_prompts,
        marks=base.settings.mark_pictures,
        signer=open_signer(base.settings.c2pa_certificate, base.settings.c2pa_key, marks=base.settings.mark_pictures),
    )


def _image_calls(base: _Base, creator: ImageCreator, limiter: RateLimiter) -> ImageCalls:
    return ImageCalls(
        creator=creator,
        active=base.active_calls,
        store=base.call_store,
        expected_retries=base.expected_retries,
        limiter=limiter,
        background=base.background,
        drain=base.drain,
        retry_grace_s=base.settings.retry_grace_s,
    )


def _response_creator(
    base: _Base, history: History, planner: Planner, loop: ToolLoop, responses: Responses, limiter: RateLimiter
) -> ResponseCreator:
    return ResponseCreator(
        catalog=base.catalog,
        history=history,
        planner=planner,
        loop=loop,
        responses=responses,
        active=base.active_responses,
        store=base.response_store,
        expected_retries=base.expected_retries,
        limiter=limiter,
        background=base.background,
        drain=base.drain,
        retry_grace_s=base.settings.retry_grace_s,
        leave_out_pictures=base.settings.leave_out_pictures,
    )


def _policy_admin(base: _Base, moderator: Moderator) -> PolicyAdmin:
    return PolicyAdmin(
        base.policy,
        moderator,
        base.classifier_engine,
        base.catalog,
        base.database,
        path=base.settings.moderation,
        weights=base.settings.weights,
    )


def _catalog_updater(
    base: _Base, checkpoints: CheckpointManager, peers: Peers | None, version: int | None
) -> tuple[CatalogMember | None, CatalogUpdater]:
    """Of a server that is the only one, or of one of several."""
    settings, folders = base.settings, {"model_configs": base.settings.model_configs, "weights": base.settings.weights}
    digests = Digests(settings.weight_digests)
    switch = CatalogSwitch(
        base.catalog, base.image_engine, base.chat_engine, base.upstreams, digests, preload=settings.preload
    )
    if peers is None or version is None or settings.gateway_url is None:
        history = EditHistory(settings.home / "swaps.json")
        return None, FileCatalogUpdater(base.catalog, switch, checkpoints, history, **folders)
    store = CatalogStore(base.database, base.gateways.owner)
    member = CatalogMember(base.catalog, switch, store, digests, version=version, **folders)
    updater = ClusterCatalogUpdater(
        base.catalog, member, store, peers, checkpoints,
        url=settings.gateway_url, lease_s=settings.lease_s, **folders,
    )  # fmt: skip
    return member, updater
