"""`darkroom doctor`: whether this machine can run the server, and which obstacles there are. All functions block."""

import errno
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import httpx

from server.accounts.db import Database, connect_database
from server.accounts.schema import schema_problem
from server.accounts.stored_files import StoredFiles
from server.backends.object_storage import open_storage
from server.catalog.images import CatalogError, load_catalog
from server.errors import DatabaseBusy, DatabaseFailed, StartError
from server.flows.operators.gpu_findings import gpu_findings
from server.flows.storage.owner import StorageMarks
from server.schemas.status import Finding
from server.settings import PREFIX, Settings, unknown_settings

MIN_FREE_BYTES = 5 * 2**30


def run_checks(settings: Settings) -> list[Finding]:
    """Run every check, and return the findings; the server may run meanwhile. A check that meets a file which it may
    not read reports that."""
    checks: tuple[Callable[[Settings], Finding], ...] = (
        _memory, _disk, _port, _permissions, _database, _storage, _catalog, _egress,
    )  # fmt: skip
    return [_settings(settings), *gpu_findings(settings), *(_checked(check, settings) for check in checks)]


def _checked(check: Callable[[Settings], Finding], settings: Settings) -> Finding:
    try:
        return check(settings)
    except OSError as error:
        detail = f"{error.filename}: {error.strerror}"
        return Finding(name=check.__name__.removeprefix("_"), ok=False, detail=detail)


def _settings(_: Settings) -> Finding:
    if unknown := unknown_settings():
        return Finding(name="settings", ok=None, detail=" ".join(unknown))
    given = sorted(name for name in os.environ if name.startswith(PREFIX))
    return Finding(name="settings", ok=True, detail=", ".join(given) or "all are the defaults")


def _memory(_: Settings) -> Finding:
    sizes = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(sizes[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return Finding(name="memory", ok=True, detail=f"{_gib(available)} of {_gib(total)} are available")


def _disk(settings: Settings) -> Finding:
    free = {name: shutil.disk_usage(_existing(path)).free for name, path in _folders(settings)}
    detail = ", ".join(f"{name}: {_gib(size)} free" for name, size in free.items())
    return Finding(name="disk", ok=free["home"] >= MIN_FREE_BYTES, detail=detail)


def port_problem(settings: Settings) -> str | None:
    """Return why the server can't listen where it should, and a remedy; None if it can."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as check:
        check.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            check.bind((settings.host, settings.port))
        except OSError as error:
            remedies = {
                errno.EADDRINUSE: "another program listens there. Stop it, or choose another port (DARKROOM_PORT)",
                errno.EACCES: "ports below 1024 are for root. Choose another one (DARKROOM_PORT)",
            }
            remedy = remedies.get(
                error.errno or 0,
                f"{error.strerror}. Choose an address of this machine (DARKROOM_HOST): 127.0.0.1, or 0.0.0.0 for all",
            )
            return f"{settings.host}:{settings.port}: {remedy}"
    return None


def _port(settings: Settings) -> Finding:
    problem = port_problem(settings)
    if problem and _answers(settings):
        return Finding(name="port", ok=True, detail=f"a Darkroom server answers at {settings.local_url}")
    return Finding(name="port", ok=not problem, detail=problem or f"{settings.host}:{settings.port} is free")


def _answers(settings: Settings) -> bool:
    """Return whether what listens is a server like this one."""
    try:
        answer = httpx.get(f"{settings.local_url}/healthz", timeout=5, trust_env=False)
        return answer.is_success and bool(answer.json() == {"status": "live"})
    except (httpx.HTTPError, ValueError):
        return False


def _permissions(settings: Settings) -> Finding:
    problems = []
    if not os.access(_existing(settings.home), os.W_OK):
        problems.append(f"{settings.home} can't be written")
    elif settings.home.exists() and settings.home.stat().st_mode & 0o077:
        problems.append(f"{settings.home} can be read by others on this machine: chmod 700")
    problems += [f"{path} can't be read" for _, path in _folders(settings)[1:] if not os.access(path, os.R_OK)]
    return Finding(name="permissions", ok=not problems, detail="; ".join(problems) or f"{settings.home} is private")


def _database(settings: Settings) -> Finding:
    database = Database(settings.database_url)
    kind = database.url.get_backend_name()
    try:
        version = database.schema_version()
    except (DatabaseBusy, DatabaseFailed) as error:
        return Finding(name="database", ok=False, detail=f"{kind}: {error.reason}")
    finally:
        database.dispose()
    if version is None:
        return Finding(name="database", ok=None, detail=f"{kind}: made at the first start")
    detail = f"{kind}, schema {version}"
    if problem := schema_problem(version):
        return Finding(name="database", ok=False, detail=f"{detail}: {problem}")
    if not database.is_sqlite and shutil.which("pg_dump") is None:
        return Finding(name="database", ok=None, detail=f"{detail}; pg_dump is not there, which backups need")
    return Finding(name="database", ok=True, detail=detail)


def _storage(settings: Settings) -> Finding:
    with connect_database(settings.database_url) as database:
        try:
            if schema_problem(database.schema_version()) is not None:
                return Finding(name="storage", ok=None, detail=f"{settings.images}: no server of this version has run")
            storage = open_storage(settings.images, proxy=settings.proxy)
            problem = StorageMarks(StoredFiles(database), storage, settings).find_problem()
        except (DatabaseBusy, DatabaseFailed) as error:
            problem = f"the database can't say whose it is: {error.reason}"
        except StartError as error:
            problem = str(error)
    return Finding(name="storage", ok=problem is None, detail=problem or f"{settings.images} is this database's")


def _catalog(settings: Settings) -> Finding:
    try:
        catalog = load_catalog(settings.model_configs, settings.weights)
    except CatalogError as error:
        return Finding(name="catalog", ok=False, detail="; ".join(str(error).splitlines()))
    paths = [path for spec in catalog.checkpoints for path in spec.paths]
    paths += [spec.path for spec in catalog.chat.checkpoints]
    missing = [f"{path} is missing" for path in paths if not path.exists()]
    counts = f"image models: {len(catalog.models)}, chat models: {len(catalog.chat.models)}"
    return Finding(name="catalog", ok=not missing, detail="; ".join([counts, *missing]))


def _egress(settings: Settings) -> Finding:
    """List the hosts to which the server may connect. No connection is tried."""
    allowed = [f"references from https URLs (DARKROOM_FETCH={settings.fetch})"] if settings.fetch else []
    if settings.webhooks != "off":
        allowed.append(f"webhooks (DARKROOM_WEBHOOKS={settings.webhooks})")
    if settings.oidc_issuer is not None:
        allowed.append(f"the sign-in provider {settings.oidc_issuer}")
    try:
        upstreams = load_catalog(settings.model_configs, settings.weights).upstreams
        allowed += [f"the upstream {upstream.base_url}" for upstream in upstreams]
    except CatalogError:
        allowed.append("unknown upstreams: the catalog is invalid")
    return Finding(
        name="egress", ok=None if allowed else True, detail="; ".join(allowed) or "nothing leaves this machine"
    )


def _folders(settings: Settings) -> list[tuple[str, Path]]:
    return [("home", settings.home), ("weights", settings.weights), ("model_configs", settings.model_configs)]


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
