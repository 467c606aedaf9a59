"""Builds the flows of operators, and a server's part in a cluster."""

from pipelines.checkpoints.folder.sums import Digests
from server.accounts.catalogs import CatalogStore
from server.backends.gateway_link import GatewayLink
from server.build.parts import Parts, policy_loader
from server.flows.admission import Admission
from server.flows.call_recording import CallRecorder
from server.flows.catalog.cluster import ClusterCatalog
from server.flows.catalog.folder import FolderCatalog
from server.flows.catalog.member import CatalogMember
from server.flows.catalog.switch import CatalogSwitch
from server.flows.catalog.update import CatalogUpdater
from server.flows.checkpoints import CheckpointManager
from server.flows.comparison_grid import ComparisonGrids
from server.flows.grid_jobs import GridJobs
from server.flows.operators.policy import PolicyAdmin
from server.flows.operators.queue import JobQueue, worker_reports
from server.flows.operators.sleep import Sleeper
from server.flows.operators.swaps import CatalogJobs
from server.flows.other_gateways import OtherGateways
from server.flows.storage_sweep import StorageSweep
from server.services import Cluster, Operations


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
