"""From `darkroom serve` to a running server: what must be there first, and what the first screen says."""

import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from rich.console import Console
from rich.markup import escape

from pipelines.catalog.images import Catalog, CatalogError, load_catalog
from server.accounts.db import Database
from server.accounts.keys import any_keys, create_key
from server.app import create_app
from server.cli.graceful_shutdown import DrainingServer
from server.errors import StartError
from server.housekeeping import HomeInUse, lock_home
from server.services import Services
from server.settings import Settings
from server.telemetry.logs import configure_logs

STARTERS = ("starter-alpha", "starter-beta", "starter-chat")


def run(settings: Settings) -> None:
    """Serve until a signal. Raises StartError."""
    console = Console(highlight=False, soft_wrap=True)
    catalog = read_catalog(settings)
    try:
        lock_home(settings.home).close()  # said early and in words; the server itself takes it again
    except (HomeInUse, OSError) as error:
        raise StartError(str(error)) from error
    configure_logs(settings.home / "logs", as_json=settings.log_json)
    new_key = _first_key(settings, catalog)
    _admin_key(settings)
    _need_checkpoints(settings, catalog)
    show_key = new_key or sys.stdout.isatty()
    app = create_app(settings, on_ready=lambda services: _welcome(console, services, show_key=show_key))
    console.print("Darkroom is loading its checkpoints ...")
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
    )
    server = DrainingServer(config, app.state.services.calls, app.state.services.live, settings.drain_s)
    server.run()
    if server.force_exit:
        sys.exit(1)
    if not server.started:
        raise StartError(f"The server did not start on {settings.host}:{settings.port}; the lines above say why.")


def groups_of(settings: Settings) -> frozenset[str]:
    """Every group that some model asks for. Raises StartError."""
    return read_catalog(settings).groups


def build_starters(weights: Path, *, force: bool) -> int:
    """Build the missing starters, in another process since this one never imports torch. Returns its exit status."""
    command = [sys.executable, "-m", "starters.build", str(weights), *(["--force"] if force else [])]
    return subprocess.run(command, check=False).returncode


def train_starters(weights: Path, names: Sequence[str], minutes: float | None, *, onward: bool) -> int:
    """Train them one after the other, each in a process of its own. Raises StartError for a name that is none."""
    if unknown := [name for name in names if name not in STARTERS]:
        raise StartError(f"There is no starter {unknown[0]}. They are {', '.join(STARTERS)}.")
    limit = [*([] if minutes is None else ["--minutes", str(minutes)]), *(["--onward"] if onward else [])]
    for name in names or STARTERS:
        module = ["chat.train", str(weights)] if name == "starter-chat" else ["training", str(weights), name, *limit]
        if status := _starter_command(*module):
            return status
    return 0


def measure_starters(settings: Settings, count: int, sheet: Path | None, *, cards: bool) -> int:
    """Measure them in another process. Returns its exit status."""
    options = ["--count", str(count), *(["--sheet", str(sheet)] if sheet else []), *(["--cards"] if cards else [])]
    return _starter_command("measuring", str(settings.weights), str(settings.model_configs), *options)


def _starter_command(module: str, *arguments: str) -> int:
    """Of the tensor side, which this process never imports. Ctrl-C reaches it by itself, so it is waited for."""
    process = subprocess.Popen([sys.executable, "-m", f"starters.{module}", *arguments])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def read_catalog(settings: Settings) -> Catalog:
    """The catalog that the settings name. Raises StartError."""
    try:
        return load_catalog(settings.model_configs, settings.weights)
    except CatalogError as error:
        raise StartError(str(error)) from error


def _first_key(settings: Settings, catalog: Catalog) -> bool:
    """A first start makes a key with every group and leaves it in the home, readable by the owner alone. Returns
    whether this is one."""
    database = Database(settings.database_url)
    try:
        database.migrate()
        if any_keys(database):
            return False
        _, secret = create_key(database, "dev", catalog.groups)
    finally:
        database.dispose()
    (settings.home / "dev-key").unlink(missing_ok=True)
    _write_secret(settings.home / "dev-key", secret)
    return True


def _admin_key(settings: Settings) -> None:
    """What `darkroom swap` and `darkroom reload` show the server: whoever can read it, runs it."""
    if not settings.admin_key.exists():
        _write_secret(settings.admin_key, f"admin-{secrets.token_urlsafe(32)}")


def _write_secret(path: Path, secret: str) -> None:
    """A new file that its owner alone can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{secret}\n")


def _need_checkpoints(settings: Settings, catalog: Catalog) -> None:
    """Build starters that the catalog names and the disk lacks; refuse any other missing checkpoint by name."""
    wanted = {spec.path for spec in catalog.checkpoints} | {spec.path for spec in catalog.chat.checkpoints}
    missing = {path for path in wanted if not path.exists()}
    if others := [path for path in missing if path not in {settings.weights / name for name in STARTERS}]:
        names = ", ".join(str(path) for path in others)
        raise StartError(f"The catalog ({settings.model_configs}) names checkpoints that are not there: {names}")
    if missing and build_starters(settings.weights, force=False):
        raise StartError("The starter checkpoints could not be built; the lines above say why.")


def _welcome(console: Console, services: Services, *, show_key: bool) -> None:
    """The first screen. A key that is not shown, lest every start leave it in a log, is named by its file."""
    base = services.settings.local_url
    dev_key = services.settings.home / "dev-key"
    key = dev_key.read_text().strip() if dev_key.exists() else "YOUR_KEY"
    bearer = key if show_key or not dev_key.exists() else f"$(cat {shlex.quote(str(dev_key))})"
    for state in (*services.images.checkpoints.values(), *services.chat.checkpoints.values()):
        if state.state != "loaded":
            console.print(f"[red]Checkpoint {escape(state.spec.name)} does not load:[/red] {escape(state.detail)}")
    console.print(f"\n[bold]Darkroom is ready[/bold] on {services.images.device}.")
    console.print(f"  API      {base}/v1", markup=False)
    console.print(f"  Key      {key if bearer == key else f'in {dev_key}'}", markup=False)
    console.print(f"  Console  {base}/console", markup=False)
    console.print("\nTry:")
    body = f'{{"model": "{services.catalog.default}", "prompt": "a red boat at sunset"}}'
    console.print(
        f'  curl -s {base}/v1/images/generations -H "Authorization: Bearer {bearer}" '
        f"-H 'Content-Type: application/json' -d '{body}'\n",
        markup=False,
    )
