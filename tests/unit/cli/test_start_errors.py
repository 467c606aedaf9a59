"""What a command says when it can't start: one line, with what would work."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from server.accounts.db import Database
from server.cli.serve import run as serve
from server.data_folders import REPOSITORY
from server.errors import StartError
from server.settings import Settings, unknown_settings

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The shipped catalog and its checkpoints, with a home of its own."""
    return Settings(home=tmp_path / "home", port=0)


@pytest.mark.daily("DATABASE-mysql*", "PORT-*")
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DATABASE", "mysql://x", "Write it like postgresql+psycopg://USER:PASSWORD@HOST/NAME or sqlite:///FILE"),
        ("DATABASE", "darkroom.db", "or sqlite:///FILE (got 'darkroom.db')"),
        ("PUBLIC_URLS", "pictures.example", "Write it like https://pictures.example"),
        ("CORS_ORIGINS", "app", "https://pictures.example, or * for all"),
        ("PORT", "http", "valid integer"),
        ("DEVICE", "gpu", "'auto', 'cuda' or 'cpu'"),
    ],
)
def test_an_invalid_setting_is_named_with_what_would_work(name: str, value: str, words: str) -> None:
    environment = {**os.environ, f"DARKROOM_{name}": value}
    command = [sys.executable, "-m", "darkroom", "keys", "list"]
    ended = subprocess.run(
        command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"DARKROOM_{name}: ")
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_an_empty_database_setting_is_the_default(tmp_path: Path) -> None:
    assert Settings(home=tmp_path, database="").database_url.database == str(tmp_path / "darkroom.db")


def test_a_misspelled_setting_is_told_with_its_likely_name() -> None:
    lines = unknown_settings({"DARKROOM_PROT": "1", "DARKROOM_PORT": "1", "DARKROOM_QWERTYUIOP": "1", "HOME": "/"})
    assert lines == [
        "DARKROOM_PROT is no setting and has no effect. Is it DARKROOM_PORT?",
        "DARKROOM_QWERTYUIOP is no setting and has no effect.",
    ]


def test_a_port_in_use_is_told_before_anything_is_loaded(settings: Settings) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        settings = settings.model_copy(update={"port": other.getsockname()[1]})
        with pytest.raises(StartError, match=rf"127.0.0.1:{settings.port}: another program.*DARKROOM_PORT"):
            serve(settings)
    assert not (settings.home / "dev-key").exists()


def test_an_address_of_another_machine_is_told(settings: Settings) -> None:
    with pytest.raises(StartError, match=r"192\.0\.2\.1:0: .*DARKROOM_HOST.*127\.0\.0\.1"):
        serve(settings.model_copy(update={"host": "192.0.2.1"}))


def test_a_home_that_can_not_be_made_is_told(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"file/home: Not a directory\. .*DARKROOM_HOME"):
        serve(settings.model_copy(update={"home": tmp_path / "file" / "home"}))


def test_a_missing_driver_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StartError, match="DARKROOM_DATABASE needs psycopg: make install EXTRAS=postgres"):
        Database("postgresql+psycopg://a@127.0.0.1/b")
