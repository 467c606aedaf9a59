"""The catalog with which a server starts: its files' or, if it is one of several, the one that the others serve."""

from dataclasses import dataclass

from pipelines.checkpoints.folder.sums import Digests
from server.accounts.catalogs import CatalogContent, CatalogStore, CatalogVersion
from server.accounts.db import connect_database
from server.catalog.images import Catalog, CatalogError, load_catalog
from server.errors import StartError
from server.flows.catalog.files import SendProgress, compare_checksums, parse, read_files, weight_checksums, with_sums
from server.settings import Settings


@dataclass(frozen=True, slots=True)
class StartCatalog:
    """The catalog with which a server starts. `version` is None for a server that is the only one."""

    catalog: Catalog
    version: int | None = None


def catalog_at_start(settings: Settings, send: SendProgress = lambda _done, _total: None) -> StartCatalog:
    """Return the catalog that the server begins with. Blocking: each server of a cluster reads its weights whole at its
    first start, and reports its progress to `send`. The files of the first one become the catalog of all. Raises
    CatalogError, and StartError for a server that can't join a cluster."""
    if settings.gateway_url is None:
        return StartCatalog(load_catalog(settings.model_configs, settings.weights))
    _check_cluster(settings)
    with connect_database(settings.database_url) as database:
        database.migrate()
        current = _current_version(settings, CatalogStore(database), send)
    catalog = parse(current.content.files, settings.model_configs, settings.weights)
    digests = Digests(settings.weight_digests)
    sums = weight_checksums(catalog, settings.weights, digests, send)
    try:
        compare_checksums(sums, current.content.weights)
        return StartCatalog(with_sums(catalog, digests), current.version)
    except CatalogError as error:
        raise StartError(f"The other servers serve version {current.version} of the catalog. Here {error}") from error


def compare_weights(database: str, settings: Settings) -> None:
    """Check that this machine has the weights of the catalog that the servers of this database serve. Blocking: reads
    those that have changed since the last time. Raises StartError."""
    with connect_database(database) as connected:
        current = CatalogStore(connected).current()
    if current is None:
        return
    try:
        catalog = parse(current.content.files, settings.model_configs, settings.weights)
        sums = weight_checksums(catalog, settings.weights, Digests(settings.weight_digests))
        compare_checksums(sums, current.content.weights)
    except CatalogError as error:
        raise StartError(f"its node does not fit the cluster's catalog: {error}") from error


def _current_version(settings: Settings, store: CatalogStore, send: SendProgress) -> CatalogVersion:
    if (current := store.current()) is not None:
        return current
    files = read_files(settings.model_configs)
    catalog = parse(files, settings.model_configs, settings.weights)
    weights = weight_checksums(catalog, settings.weights, Digests(settings.weight_digests), send)
    return store.begin(CatalogContent(files, weights))


def _check_cluster(settings: Settings) -> None:
    """Check that a server of a cluster shares enough with the others: PostgreSQL, a storage and a secret. Raises
    StartError."""
    if settings.database_url.get_backend_name() == "sqlite":
        raise StartError("DARKROOM_GATEWAY_URL is for servers that share PostgreSQL: set DARKROOM_DATABASE to it too.")
    if settings.storage is None:
        message = "DARKROOM_GATEWAY_URL needs DARKROOM_STORAGE: an object store, or a folder that all servers share."
        raise StartError(message)
    if settings.cluster_secret is None:
        raise StartError("DARKROOM_GATEWAY_URL needs DARKROOM_CLUSTER_SECRET, the same for all servers.")
