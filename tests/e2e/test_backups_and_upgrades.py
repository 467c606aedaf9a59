"""A backup of a server that draws, restored into an empty home; a home of version 0.1.0, upgraded and rolled back."""

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.harness import REPOSITORY, Server, assert_clean, charges, count_rows, suspended, until

PATH = "/v1/images/generations"
BODY = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count", "response_format": "url"}
# made by a server of that version, over some days: two keys that drew, a chat, a response, a refusal
HOME_OF_0_1_0 = Path(__file__).with_name("home_of_0_1_0")
CODE_OF_0_1_0 = "da41205"
OLD_IMAGE = "c1b77f42aa55506288d6922ed9ee1fbd.webp"
OLD_RESPONSE = "resp_8b0450b5480b42c19ec0c43f216c62c8"
pytestmark = pytest.mark.nightly

READ_BY_OLD_CODE = """
import sys
from server.accounts.db import Database
from server.accounts.keys import list_keys
from server.accounts.report import check

database = Database(sys.argv[1])
database.migrate()
print(check(database), [key.name for key in list_keys(database)])
"""
WEB_SHOP_SPENT = "0.20"


@pytest.fixture
def first(tmp_path: Path, tiny: tuple[Path, Path]) -> Server:
    """Not yet started, with a catalog of its own."""
    weights, configs = tiny
    return Server(tmp_path / "home", weights, shutil.copytree(configs, tmp_path / "configs"))


def draw(server: Server) -> str:
    """The path of a new image."""
    with server.http() as http:
        return str(httpx.URL(http.post(PATH, json=BODY).raise_for_status().json()["data"][0]["url"]).path)


def image(server: Server, path: str) -> bytes:
    return httpx.get(f"{server.base}{path}", trust_env=False).raise_for_status().content


def prices(server: Server) -> set[str]:
    with server.http() as http:
        return {str(model["price"]) for model in http.get("/v1/models").json()["data"]}


def test_a_backup_made_while_it_draws_is_restored_into_an_empty_home(first: Server, tmp_path: Path) -> None:
    first.start()
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(first.kill)
        before = draw(first)
        bytes_before = image(first, before)
        catalog = first.configs / "tiny.toml"
        catalog.write_text(catalog.read_text().replace('price = "0.10"', 'price = "0.25"'))
        assert first.darkroom("reload").returncode == 0
        with suspended(first.readiness()["worker_pid"]), first.unread_call(PATH, BODY):
            until(lambda: count_rows(first, "holds", "state = 'held'") == 1)
            made = first.darkroom("backup", str(tmp_path / "backups"))
        assert "1 images" in made.stdout, made.stderr
        (file,) = (tmp_path / "backups").iterdir()
        after = draw(first)
        refused = first.darkroom("restore", str(file))
        assert (refused.returncode, refused.stdout) == (1, ""), "it runs"
        assert_clean(first)
        first.stop()

    second = Server(tmp_path / "other-home", first.weights, tmp_path / "other-configs")
    assert "Restored 1 images" in second.darkroom("restore", str(file)).stdout
    second.start()
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(second.kill)
        assert (second.key, second.admin_key) == (first.key, first.admin_key)
        assert image(second, before) == bytes_before
        assert httpx.get(f"{second.base}{after}", trust_env=False).status_code == 404
        assert (charges(second), count_rows(second, "holds", "state = 'held'")) == (1, 0)
        assert prices(second) == {"0.25"}
        draw(second)
        assert_clean(second)
        second.stop()


def dump(home: Path) -> list[str]:
    """The whole database, as SQL."""
    with contextlib.closing(sqlite3.connect(home / "darkroom.db")) as database:
        return list(database.iterdump())


@pytest.fixture
def upgraded(first: Server) -> Server:
    """A server whose home is of 0.1.0, not yet started."""
    shutil.copytree(HOME_OF_0_1_0, first.home)
    with contextlib.closing(sqlite3.connect(first.home / "darkroom.db")) as database:
        database.executescript((first.home / "darkroom.sql").read_text())
    return Server(first.home, first.weights, first.configs, {"responses_keep_days": "36500"})


def test_a_home_of_version_0_1_0_is_upgraded_used_and_rolled_back(upgraded: Server, tmp_path: Path) -> None:
    home = upgraded.home
    as_it_was = dump(home)
    upgraded.start()
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(upgraded.kill)
        assert_clean(upgraded)
        assert image(upgraded, f"/cdn/{OLD_IMAGE}") == (home / "results" / "c1" / OLD_IMAGE).read_bytes()
        with upgraded.http() as http, upgraded.http(upgraded.admin_key) as admin:
            assert http.get(f"/v1/responses/{OLD_RESPONSE}").json()["status"] == "incomplete"
            edit = {**BODY, "image": f"{upgraded.base}/cdn/{OLD_IMAGE}"}
            assert http.post(PATH, json=edit).status_code == 200
            rows = admin.get("/admin/usage", params={"by": "key", "from": "2026-11-01"}).json()["data"]
            assert {row["key_name"]: row["amount"] for row in rows}["web shop"] == WEB_SHOP_SPENT
        assert upgraded.darkroom("keys", "set", "old team", "--monthly-budget", "3").returncode == 0
        assert_clean(upgraded)
        upgraded.stop()

    (home / "darkroom.db.schema-0007").replace(home / "darkroom.db")  # the way back (docs/guides/operating.md)
    for leftover in ("darkroom.db-wal", "darkroom.db-shm"):
        (home / leftover).unlink(missing_ok=True)
    assert dump(home) == as_it_was
    if _has_history():
        archive = subprocess.run(
            ["git", "archive", CODE_OF_0_1_0, "server", "pipelines"], cwd=REPOSITORY, capture_output=True, check=True
        )
        code = tmp_path / "code"
        code.mkdir()
        subprocess.run(["tar", "x"], cwd=code, input=archive.stdout, check=True)
        environment = {**upgraded.environment, "PYTHONPATH": str(code)}
        command = [sys.executable, "-c", READ_BY_OLD_CODE, f"sqlite:///{home / 'darkroom.db'}"]
        read = subprocess.run(command, cwd=code, env=environment, capture_output=True, text=True, check=False)
        assert read.stdout == "[] ['dev', 'web shop', 'old team']\n", read.stderr


def _has_history() -> bool:
    """Not in a bundle, nor in a shallow clone."""
    asked = subprocess.run(["git", "cat-file", "-e", f"{CODE_OF_0_1_0}^{{commit}}"], cwd=REPOSITORY, check=False)
    return asked.returncode == 0
