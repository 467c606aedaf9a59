"""`darkroom serve`: checks and preparations before the server starts, and the first screen."""

import os
import secrets
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI
from rich.console import Console
from rich.markup import escape

from server.accounts.db import connect_database
from server.accounts.keys import create_key, has_keys, set_secret
from server.app import create_app
from server.catalog.images import Catalog, CatalogError
from server.cli.graceful_shutdown import DrainingServer
from server.cli.http_protocol import (
    IDLE_S,
    ConnectionLimits,
    most_connections,
    protocol_class,
    raise_descriptor_limit,
)
from server.cli.reading import reading_shown
from server.data_folders import write_starters
from server.errors import StartError
from server.flows.catalog.start import catalog_at_start
from server.flows.operators.doctor import port_problem
from server.housekeeping import lock_database, lock_home, make_private
from server.http.public_address import TRUSTED_BY_DEFAULT, ProxyHeadersMiddleware, trusted_networks
from server.secret_files import derive_secret, read_secret, write_secret
from server.services import Services
from server.settings import Settings, unknown_settings
from server.telemetry.logs import configure_logs

log = structlog.stdlib.get_logger("darkroom.serving")

CHOOSE_HOME = "Choose a folder that can be written for the server's files (DARKROOM_HOME)."
BACKLOG = 128  # also how many connections are accepted before the first of them is looked at


def run(settings: Settings) -> None:
    """Serve until a signal. Raises StartError."""
    console = _Screen(highlight=False, soft_wrap=True)
    for line in unknown_settings():
        console.print(line, style="yellow", markup=False)
    catalog = _check_start(settings, console)
    if problem := port_problem(settings):
        raise StartError(f"The server can't listen on {problem}.")
    app = _make_app(settings, catalog, lambda services: _print_ready(console, services, show_key=sys.stdout.isatty()))
    console.print(f"Darkroom is loading {_loaded_at_start(catalog)} ...", markup=False)
    server = DrainingServer(_server_config(settings, app), app.state.services)
    server.run()
    if server.force_exit:
        sys.exit(1)
    if not server.started:
        raise StartError(f"The server did not start on {settings.host}:{settings.port}; the lines above say why.")


class _Screen(Console):
    """Shows lines for as long as there is somebody to read them: a server goes on without."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, unless the terminal or the pipe has gone."""
        try:
            super().print(*objects, **options)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Print nothing from now on."""
        self.quiet = True
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def _check_start(settings: Settings, console: Console) -> Catalog:
    """Check all that would stop the server later, and return the catalog. Raises StartError."""
    try:
        if write_starters(settings.home, settings.weights, settings.model_configs):
            text = f"The catalog is in {settings.model_configs}: edit its files, or use `darkroom checkpoints`."
            console.print(text, markup=False)
    except OSError as error:
        raise StartError(f"{error.filename or settings.home}: {error.strerror}. {CHOOSE_HOME}") from error
    try:
        with reading_shown(console) as send:
            catalog = catalog_at_start(settings, send).catalog
    except CatalogError as error:
        raise StartError(str(error)) from error
    require_checkpoints(settings, catalog)
    try:
        with lock_home(settings.home), lock_database(settings) or nullcontext():
            pass  # for an early, readable error; the server itself takes the locks again
    except OSError as error:
        raise StartError(f"{error.filename or settings.home}: {error.strerror}. {CHOOSE_HOME}") from error
    return catalog


def _make_app(settings: Settings, catalog: Catalog, on_ready: Callable[[Services], None]) -> FastAPI:
    configure_logs(settings.home / "logs", as_json=settings.log_json)
    make_private(settings.home)
    create_first_key(settings, catalog)
    _create_admin_key(settings)
    create_webhook_secret(settings)
    return create_app(settings, on_ready)


def _server_config(settings: Settings, app: FastAPI) -> uvicorn.Config:
    trusted = trusted_networks(os.environ.get("FORWARDED_ALLOW_IPS", TRUSTED_BY_DEFAULT))
    config = uvicorn.Config(
        ProxyHeadersMiddleware(app, trusted, settings.public_urls),
        host=settings.host,
        port=settings.port,
        ws="none",
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        timeout_keep_alive=IDLE_S,
        server_header=False,
        proxy_headers=False,  # uvicorn's own know neither the host nor the path
    )
    total = most_connections(raise_descriptor_limit(), settings.max_connections)
    limits = ConnectionLimits(total, settings.max_connections_per_address, trusted)
    config.http = protocol_class(limits, settings.request_timeout_s, settings.send_timeout_s)
    return config


def create_first_key(settings: Settings, catalog: Catalog) -> None:
    """Create a key with every group at the first start, in a file that only the owner can read. The file of another
    database's key stays, and this database gets the same key: the other one may come back."""
    file = settings.home / "dev-key"
    with connect_database(settings.database_url) as database:
        database.migrate()
        if has_keys(database):
            return
        key, secret = create_key(database, "dev", catalog.groups)
        if file.exists():
            set_secret(database, key.id, read_secret(file))
        else:
            write_secret(file, secret)


def _create_admin_key(settings: Settings) -> None:
    """Create the key by which `darkroom swap` and `darkroom reload` prove that they are run by the server's operator,
    if it is not there. Raises StartError for a file that holds none."""
    if settings.admin_key.exists():
        read_secret(settings.admin_key)
    else:
        write_secret(settings.admin_key, f"admin-{secrets.token_urlsafe(32)}")


def create_webhook_secret(settings: Settings) -> None:
    """Create the home's own secret of webhooks, once. One of several servers has the cluster's in its place: a receiver
    has one secret, and any of them may send."""
    file = settings.webhook_secret
    before = read_secret(file) if file.exists() else None
    if settings.gateway_url is None or settings.cluster_secret is None:
        secret = before or secrets.token_urlsafe(32)
    else:
        secret = derive_secret(settings.cluster_secret.get_secret_value(), "webhooks")
    if secret == before:
        return
    if before:
        log.warning("webhooks are signed with the cluster's secret from now on, not with this home's", file=str(file))
    file.unlink(missing_ok=True)
    write_secret(file, secret)


def require_checkpoints(settings: Settings, catalog: Catalog) -> None:
    """Check that the checkpoints of the catalog are on the disk. Raises StartError, in one line."""
    named_by: dict[Path, set[str]] = defaultdict(set)
    for model in catalog.models.values():
        for spec in model.checkpoints:
            for path in spec.paths:
                named_by[path].add(model.source.name)
    for chat in catalog.chat.checkpoints:
        named_by[chat.path].add("chat.toml")
    missing = [f"{path} (named in {', '.join(sorted(files))})" for path, files in named_by.items() if not path.exists()]
    if missing:
        raise StartError(
            f"The catalog names checkpoints that do not exist: {'; '.join(missing)}. Copy them there, set "
            f"DARKROOM_WEIGHTS to the folder that has them, or name others in {settings.model_configs}."
        )


def _loaded_at_start(catalog: Catalog) -> str:
    image = (spec.name for model in catalog.models.values() for spec in model.checkpoints)
    return ", ".join(dict.fromkeys([*image, *(spec.name for spec in catalog.chat.checkpoints)])) or "no checkpoint"


def command() -> str:
    """Return how a person who started this server calls its commands from the same folder."""
    found = Path(sys.executable).with_name("darkroom")
    if (on_path := shutil.which("darkroom")) and Path(on_path).resolve() == found.resolve():
        return "darkroom"
    folder = Path.cwd()
    return str(found.relative_to(folder) if found.is_relative_to(folder) else found)


def _print_ready(console: Console, services: Services, *, show_key: bool) -> None:
    """Print the first screen. It names the key's file instead of the key, unless `show_key`: logs should not hold
    keys."""
    base = services.settings.local_url
    dev_key = services.settings.home / "dev-key"
    key = read_secret(dev_key) if dev_key.exists() else "YOUR_KEY"
    bearer = key if show_key or not dev_key.exists() else f"$(cat {shlex.quote(str(dev_key))})"
    for state in (*services.engines.image.checkpoints.values(), *services.engines.chat.checkpoints.values()):
        if state.state != "loaded":
            name = escape(f"{state.spec.name} ({state.spec.source})")
            console.print(f"[red]Checkpoint {name} does not load:[/red] {escape(state.detail)}")
    if problem := services.operations.storage_sweep.problem:
        console.print(problem, style="yellow", markup=False)
    console.print(f"\n[bold]Darkroom is ready[/bold] on {services.engines.image.device}.")
    console.print(f"  API      {base}/v1", markup=False)
    console.print(f"  Key      {key if bearer == key else f'in {dev_key}'}", markup=False)
    console.print(f"  Console  {base}/console", markup=False)
    console.print(f"  Commands {command()} --help", markup=False)
    console.print("\nTry:")
    body = f'{{"model": "{services.served.catalog.current.default}", "prompt": "a red boat at sunset"}}'
    console.print(
        f'  curl -s {base}/v1/images/generations -H "Authorization: Bearer {bearer}" '
        f"-H 'Content-Type: application/json' -d '{body}'\n",
        markup=False,
    )
