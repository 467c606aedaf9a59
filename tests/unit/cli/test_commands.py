"""Output and errors of the commands, without a server."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from server.accounts import db
from server.accounts.db import Database, connect_database
from server.accounts.keys import authenticate, create_key
from server.cli.admin_client import change_catalog, weights_path
from server.cli.app import main
from server.cli.printing import show
from server.cli.serve import _print_ready, create_first_key, create_webhook_secret
from server.cli.tables import balances_table
from server.errors import StartError
from server.settings import Settings


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:8080"),
        ("fd00::5", "http://[fd00::5]:8080"),
        ("box.local", "http://box.local:8080"),
    ],
)
def test_every_listen_address_has_a_url_for_local_clients(host: str, url: str) -> None:
    assert Settings(host=host, port=8080).local_url == url


def test_the_command_waits_for_no_package_that_it_does_not_need() -> None:
    slow = "{'fastapi', 'httpx', 'pydantic', 'sqlalchemy'}"
    loaded = f"import sys, server.cli.app, server.cli.app; print({slow} & sys.modules.keys())"
    process = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert process.stdout == "set()\n"


def test_names_with_brackets_are_printed_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.migrate()
    create_key(database, "x[/b] [red]:boom:", frozenset({"[alpha"}))
    show(balances_table(database, None))
    output = capsys.readouterr().out
    assert "x[/b] [red]:boom:" in output


@pytest.mark.parametrize(
    ("host", "key", "message"),
    [
        ("127.0.0.1", None, "No server has run"),
        ("127.0.0.1", "admin-1", "No server answers at http://127.0.0.1:9"),
        ("[a:b]", "admin-1", "No server answers"),
    ],
)
def test_an_unreachable_server_is_a_readable_error(tmp_path: Path, host: str, key: str | None, message: str) -> None:
    settings = Settings(home=tmp_path, host=host, port=9)
    if key:
        settings.admin_key.write_text(key)
    with pytest.raises(StartError, match=message):
        change_catalog(settings, "/admin/reload", {})


def test_an_unreadable_admin_key_is_a_readable_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise PermissionError  # the tests may run as root, who may read every file

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(StartError, match="run this as the user that runs the server"):
        change_catalog(Settings(home=tmp_path), "/admin/reload", {})


def test_a_locked_database_is_a_readable_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DARKROOM_HOME", str(tmp_path))
    monkeypatch.setattr(db, "COMMAND_LIMIT_S", 0.1)
    monkeypatch.setattr("sys.argv", ["darkroom", "operators", "create", "her"])
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.migrate()
    with database.write(), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "database is locked" in capsys.readouterr().err


def test_a_home_keeps_its_secret_of_webhooks_unless_it_is_one_of_several(tmp_path: Path) -> None:
    def secret(name: str, **given: Any) -> bytes:
        settings = Settings(home=tmp_path / name, **given)
        settings.home.mkdir(exist_ok=True)
        create_webhook_secret(settings)
        assert settings.webhook_secret.stat().st_mode & 0o777 == 0o600
        return settings.webhook_secret.read_bytes()

    cluster = {"gateway_url": "http://10.0.0.2:9090", "cluster_secret": "a" * 32}
    own = secret("one")
    assert secret("one") == own != secret("two")
    shared = secret("one", **cluster)
    assert shared == secret("three", **cluster | {"gateway_url": "http://10.0.0.3:9090"})
    assert shared != own
    assert b"aaaa" not in shared  # who knows it can't speak for a server
    assert secret("one") == shared  # its receivers know it
    assert secret("one", **cluster | {"cluster_secret": "b" * 32}) != shared


def test_a_start_with_another_database_keeps_the_first_key(tmp_path: Path) -> None:
    """As after a mistyped DARKROOM_DATABASE: its secret is nowhere else."""
    catalog: Any = SimpleNamespace(groups=frozenset({"alpha"}))
    create_first_key(Settings(home=tmp_path, database=None), catalog)
    secret = (tmp_path / "dev-key").read_text()
    for name in ("darkroom.db", "typo.db"):
        settings = Settings(home=tmp_path, database=f"sqlite:///{tmp_path / name}")
        create_first_key(settings, catalog)
        assert (tmp_path / "dev-key").read_text() == secret
        with connect_database(settings.database_url) as database:
            assert authenticate(database, secret.strip()) is not None


@pytest.mark.parametrize("show_key", [True, False])
def test_thecreate_first_key_is_printed_or_its_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], show_key: bool
) -> None:
    settings = Settings(home=tmp_path / "a home", database=None)
    settings.home.mkdir()
    catalog: Any = SimpleNamespace(groups=frozenset({"alpha"}), default="alpha-1")
    create_first_key(settings, catalog)
    first = (settings.home / "dev-key").read_text()
    create_first_key(settings, catalog)
    assert (settings.home / "dev-key").read_text() == first
    host = SimpleNamespace(checkpoints={}, device="cpu")
    served = SimpleNamespace(current=catalog)
    engines = SimpleNamespace(image=host, chat=host)
    services: Any = SimpleNamespace(settings=settings, served=SimpleNamespace(catalog=served), engines=engines)
    services.operations = SimpleNamespace(storage_sweep=SimpleNamespace(problem=None))
    _print_ready(Console(soft_wrap=True), services, show_key=show_key)
    output = capsys.readouterr().out
    key = (settings.home / "dev-key").read_text().strip()
    assert (key in output) is show_key
    bearer = key if show_key else f"$(cat '{settings.home}/dev-key')"
    assert f'curl -s http://127.0.0.1:8080/v1/images/generations -H "Authorization: Bearer {bearer}"' in output


def test_a_checkpoint_that_is_not_there_is_named_with_what_is(tmp_path: Path) -> None:
    (tmp_path / "starter-alpha").mkdir()
    settings = Settings(weights=tmp_path)
    assert weights_path(settings, "starter-alpha") == "starter-alpha"
    with pytest.raises(StartError) as refused:
        weights_path(settings, "nofolder")
    assert f"{tmp_path}/nofolder or {Path.cwd()}/nofolder" in str(refused.value)
    assert "has: starter-alpha." in str(refused.value)
