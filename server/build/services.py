"""Builds a server's services, in the order in which each needs the others."""

from pipelines.checkpoints.folder.sums import Digests
from server.accounts.catalogs import CatalogStore
from server.backends.fetch import FetchRules, WebhookRules
from server.backends.gateway_link import GatewayLink
from server.backends.signing import open_signer
from server.backends.storage import LocalStorage
from server.build.parts import Parts, build_parts, policy_loader
from server.flows.admission import Admission
from server.flows.batches.batches import Batches
from server.flows.batches.run import BatchRunner
from server.flows.call_recording import CallRecorder
from server.flows.catalog.cluster import ClusterCatalog
from server.flows.catalog.folder import FolderCatalog
from server.flows.catalog.member import CatalogMember
from server.flows.catalog.start import StartCatalog
from server.flows.catalog.switch import CatalogSwitch
from server.flows.catalog.update import CatalogUpdater
from server.flows.chat.chats import Chats
from server.flows.chat.keyed import KeyedChats
from server.flows.chat.prompt_writer import ChatPromptWriter
from server.flows.chat.run import ChatRunner
from server.flows.chat.source import ChatParts
from server.flows.chat_images.run import ChatImages
from server.flows.gateways import OtherGateways
from server.flows.images.create import ImageCreator, ImageParts, ImageRules
from server.flows.images.idempotency import ImageCalls
from server.flows.images.jobs import ImageJobs
from server.flows.images.thumbnails import Thumbnails
from server.flows.images.webhooks import Webhooks
from server.flows.moderation import Moderations, Moderator
from server.flows.operators.checkpoints import CheckpointManager
from server.flows.operators.comparison_grid import ComparisonGrids
from server.flows.operators.grid_jobs import GridJobs
from server.flows.operators.policy import PolicyAdmin
from server.flows.operators.queue import JobQueue, worker_reports
from server.flows.operators.sign_in import build_sign_in
from server.flows.operators.sleep import Sleeper
from server.flows.operators.swaps import CatalogJobs
from server.flows.rate_limits import RateLimiter
from server.flows.references import MAX_FILE_BYTES, ReferenceLoader
from server.flows.responses.compact import Compactor
from server.flows.responses.conversations import Conversations
from server.flows.responses.count_tokens import TokenCounter
from server.flows.responses.create import ResponseCreator, ResponseParts
from server.flows.responses.history import History
from server.flows.responses.image_tool import ImageToolRunner
from server.flows.responses.planner import Planner
from server.flows.responses.retrieve import Responses
from server.flows.responses.tool_loop import ToolLoop
from server.flows.retries import EqualCalls
from server.flows.storage.sweep import StorageSweep
from server.services import BatchFlows, ChatFlows, Cluster, ImageFlows, Operations, ResponseFlows, Services
from server.settings import Settings


def build_admission(parts: Parts) -> Admission:
    """Build the limits of keys, moderation, and the loading of references."""
    settings, stores, engines = parts.settings, parts.stores, parts.engines
    return Admission(
        RateLimiter(parts.running, engines.chat, stores.claims, settings.max_running_per_key),
        Moderator(parts.served.policy, engines.classify, stores.database, parts.telemetry.metrics),
        ReferenceLoader(
            stores.results,
            stores.files,
            engines.decoders,
            FetchRules(settings.fetch, MAX_FILE_BYTES, settings.fetch_timeout_s, proxy=settings.proxy),
        ),
    )


def build_creator(parts: Parts, admission: Admission, chats: Chats) -> ImageCreator:
    """Build the creator that draws image calls, of images, chats and responses alike."""
    settings, catalog = parts.settings, parts.served.catalog
    writer = ChatPromptWriter(catalog, chats)
    drawn_by = ImageParts(catalog, parts.engines.image, admission.references, admission.moderator, writer)
    rules = ImageRules(
        max_n=settings.max_n,
        answers_with_bytes=settings.answers_with_bytes,
        time_limit_s=settings.job_time_limit_s,
        keep_prompts=settings.keep_prompts,
        marks=settings.mark_pictures,
        signer=open_signer(settings.c2pa_certificate, settings.c2pa_key, marks=settings.mark_pictures),
    )
    return ImageCreator(drawn_by, rules, parts.stores, parts.running, parts.telemetry)


def build_images(parts: Parts, creator: ImageCreator, admission: Admission) -> ImageFlows:
    """Build the flows of images."""
    settings, stores, running = parts.settings, parts.stores, parts.running
    return ImageFlows(
        ImageCalls(
            creator,
            running,
            stores.calls,
            admission.limiter,
            EqualCalls(running.expected_retries, stores.gateways),
            retry_grace_s=settings.retry_grace_s,
        ),
        ImageJobs(running.calls, stores.calls, stores.files, running.backlog, stores.gateways.owner),
        Webhooks(stores.webhooks, WebhookRules(settings.webhooks, settings.proxy), settings.webhook_secret.read_bytes),
        Thumbnails(stores.files, LocalStorage(settings.thumbnails), parts.engines.decoders),
    )


def build_chats(
    parts: Parts, admission: Admission, runner: ChatRunner, chats: Chats, creator: ImageCreator, calls: ImageCalls
) -> tuple[ChatFlows, ResponseFlows]:
    """Build the flows of chats and responses. A chat that draws is run as a response is."""
    image_tool = ImageToolRunner(calls, creator, parts.stores.files)
    loop = ToolLoop(chats, admission.moderator, image_tool, parts.stores.responses, parts.running.expected_retries)
    responses = _responses(parts, admission, creator, runner, loop, chats)
    files, links = parts.stores.files, parts.settings.links_in_chats
    image = ChatImages(calls, responses.creator, admission.references, files, links=links)
    keyed = KeyedChats(parts.running.chats, parts.stores.calls, admission.limiter, parts.running.background)
    return ChatFlows(chats, keyed, image), responses


def build_runner(parts: Parts) -> ChatRunner:
    """Build what runs chats on the local worker."""
    telemetry = parts.telemetry
    return ChatRunner(
        parts.engines.chat, telemetry.metrics, telemetry.tracing, parts.stores.database, parts.running.background
    )


def build_sources(parts: Parts, admission: Admission, runner: ChatRunner) -> Chats:
    """Build the chats of every model."""
    used = ChatParts(
        parts.served.catalog,
        admission.moderator,
        admission.references,
        runner,
        parts.engines.upstreams,
        parts.telemetry.metrics,
        time_limit_s=parts.settings.job_time_limit_s,
        leave_out_pictures=parts.settings.leave_out_pictures,
        cache_across_keys=parts.settings.chat_cache_across_keys,
    )
    return Chats(used, admission.limiter, parts.running.chats, parts.running.drain)


def _responses(
    parts: Parts, admission: Admission, creator: ImageCreator, runner: ChatRunner, loop: ToolLoop, chats: Chats
) -> ResponseFlows:
    catalog, stores = parts.served.catalog, parts.stores
    history = History(stores, admission.references)
    planner = Planner(catalog, history, admission.references, creator)
    stored = Responses(parts.running, stores, EqualCalls(parts.running.expected_retries, stores.gateways))
    starter = ResponseCreator(
        ResponseParts(catalog, history, planner, loop, stored, stores.responses),
        parts.running,
        admission.limiter,
        retry_grace_s=parts.settings.retry_grace_s,
        leave_out_pictures=parts.settings.leave_out_pictures,
    )
    return ResponseFlows(
        starter,
        stored,
        Conversations(stores.conversations, history, stores.files, admission.limiter),
        Compactor(catalog, history, chats, stores.files),
        TokenCounter(catalog, history, planner, runner, admission.limiter),
    )


def build_batches(parts: Parts) -> BatchFlows:
    """Build the flows of batches."""
    settings, store = parts.settings, parts.stores.batches
    runner = BatchRunner(store, parts.running.drain)
    flow = Batches(store, runner, parts.served.catalog, parts.running.expected_retries, settings)
    return BatchFlows(flow, runner)


def build_operations(parts: Parts, admission: Admission, version: int | None) -> tuple[Cluster | None, Operations]:
    """Build the flows of operators, and this server's part in a cluster, if it is one of several: `version` is that of
    their catalog."""
    settings, stores, engines = parts.settings, parts.stores, parts.engines
    digests = Digests(settings.weight_digests)
    checkpoints = CheckpointManager(settings.model_configs, settings.weights, digests)
    cluster, updater = _build_updater(parts, checkpoints, digests, version)
    grids = ComparisonGrids(parts.served.catalog, engines.image, checkpoints, settings.job_time_limit_s)
    grid_jobs = GridJobs(grids)
    operations = Operations(
        call_recorder=CallRecorder(
            stores.call_log,
            parts.running.background,
            refusals_per_minute=settings.logged_refusals_per_minute,
            keep_prompts=settings.keep_prompts,
        ),
        job_queue=JobQueue(
            parts.running,
            stores.database,
            lambda: worker_reports((*engines.image.hosts, engines.chat, engines.classify)),
            grid_jobs,
        ),
        catalog_jobs=CatalogJobs(updater, stores.database, parts.running.background, stores.gateways),
        policy=PolicyAdmin(
            parts.served,
            admission.moderator,
            engines.classify,
            stores.database,
            path=settings.moderation,
            load=policy_loader(settings),
        ),
        checkpoints=checkpoints,
        comparison_grids=grids,
        grid_jobs=grid_jobs,
        sleeper=Sleeper(engines, stores.database),
        storage_sweep=StorageSweep(settings, stores.stored_files, stores.results, stores.files),
    )
    return cluster, operations


def _build_updater(
    parts: Parts, checkpoints: CheckpointManager, digests: Digests, version: int | None
) -> tuple[Cluster | None, CatalogUpdater]:
    """Build the updater of a server that is the only one, or of one of several."""
    settings, catalog, stores, engines = parts.settings, parts.served.catalog, parts.stores, parts.engines
    folders = {"model_configs": settings.model_configs, "weights": settings.weights}
    switch = CatalogSwitch(catalog, engines.image, engines.chat, engines.upstreams, digests, preload=settings.preload)
    if settings.gateway_url is None or settings.cluster_secret is None or version is None:
        alone = FolderCatalog(switch, settings.home / "swaps.json", **folders)
        return None, CatalogUpdater(catalog, alone, checkpoints, settings.model_configs)
    store = CatalogStore(stores.database, stores.gateways.owner)
    link = GatewayLink(settings.cluster_secret.get_secret_value())
    member = CatalogMember(switch, store, digests, version=version, **folders)
    cluster = Cluster(link, OtherGateways(stores.gateways, link, stores.database.clock), member)
    record = ClusterCatalog(member, store, cluster.other_gateways, url=settings.gateway_url, lease_s=settings.lease_s)
    return cluster, CatalogUpdater(catalog, record, checkpoints, settings.model_configs)


def build_services(settings: Settings, start: StartCatalog) -> Services:
    """Build all parts of a server. Raises StartError for settings that this machine or this catalog can't serve."""
    parts = build_parts(settings, start.catalog)
    admission = build_admission(parts)
    runner = build_runner(parts)
    sources = build_sources(parts, admission, runner)
    creator = build_creator(parts, admission, sources)
    images = build_images(parts, creator, admission)
    chats, responses = build_chats(parts, admission, runner, sources, creator, images.calls)
    cluster, operations = build_operations(parts, admission, start.version)
    return Services(
        settings=settings,
        stores=parts.stores,
        engines=parts.engines,
        running=parts.running,
        served=parts.served,
        telemetry=parts.telemetry,
        cluster=cluster,
        admission=admission,
        images=images,
        chats=chats,
        responses=responses,
        batches=build_batches(parts),
        moderations=Moderations(parts.served.policy, admission.moderator, admission.references),
        sign_in=build_sign_in(settings, parts.engines.upstreams.http, parts.stores.database, parts.served.catalog),
        operations=operations,
    )
