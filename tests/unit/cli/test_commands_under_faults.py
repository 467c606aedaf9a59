"""Every command under what an operator meets at night: never a traceback, one line that says what is in the way, and
the exit status of a failure. None makes or changes a database, except the start of a server."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer
from PIL import Image
from sqlalchemy import text
from typer.core import TyperGroup

from pipelines.protocol.finished_image import encode_file
from pipelines.protocol.images import Encoding
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.operators import create_operator
from server.accounts.schema import newest_schema
from server.accounts.teams import create_team
from server.cli.app import app
from server.data_folders import REPOSITORY
from server.settings import Settings
from tests.support.forked_commands import Commands, Ended, Run
from tests.unit.accounts.helpers import GROUPS

pytestmark = pytest.mark.slow

NAMELESS = 54321  # a user id without a name
READING = [
    ["keys", "list"], ["usage"], ["calls"], ["audit"], ["moderation"], ["operators", "list"], ["ledger"],
    ["ledger", "--check"], ["keys", "webhook-secret", "a"], ["teams", "list"], ["batches", "list"],
]  # fmt: skip
WRITING = [
    ["keys", "create", "new"], ["keys", "set", "a", "--note", "x"], ["keys", "rotate", "a"],
    ["operators", "create", "her"], ["operators", "revoke", "him"], ["keys", "revoke", "a"],
    ["teams", "create", "us"], ["teams", "set", "them", "--monthly-budget", "1"],
    ["store", "adopt"], ["store", "sweep"], ["store", "put-back", "--all"],
]  # fmt: skip
BATCHES = [["batches", "show", "x"], ["batches", "cancel", "x"]]  # there is none of this id
CATALOG = [
    ["models"], ["checkpoints", "list"], ["checkpoints", "adapters"], ["checkpoints", "inspect", "none"],
    ["checkpoints", "verify", "none"], ["checkpoints", "add", "none"], ["checkpoints", "remove", "none"],
]  # fmt: skip
ASKING = [
    ["swap", "a", "starter-alpha"], ["undo"], ["reload"], ["sleep"], ["wake"], ["jobs", "list"],
    ["jobs", "cancel", "x"], ["policy", "show"], ["policy", "reload"], ["policy", "test", "x"],
    ["checkpoints", "proof", "a"],
]  # fmt: skip
CLUSTER = [["cluster", "status"], ["cluster", "drain", "x"]]
FILES = [["backup", "FOLDER"], ["restore", "FILE"], ["reproduce", "FILE"], ["clients", "codex"]]
DOCTOR, SERVE = ["doctor"], ["serve"]
EVERY = [*READING, *WRITING, *BATCHES, *CATALOG, *ASKING, *CLUSTER, *FILES, DOCTOR, SERVE]


@dataclass
class Place:
    """A home in which a server has run, with its settings and the user of the commands."""

    folder: Path
    commands: Commands
    uid: int | None = None
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def database(self) -> Path:
        return self.home / "darkroom.db"

    def make(self) -> None:
        """Make what the start of a server makes, without an engine."""
        self.home.mkdir(parents=True)
        shutil.copytree(REPOSITORY / "model_configs", self.folder / "model_configs")
        database = Database(Settings(home=self.home).database_url)
        database.migrate()
        create_key(database, "a", GROUPS)
        create_operator(database, "him", by="test")
        create_team(database, "them", None, by="test")
        database.dispose()
        (self.home / "admin-key").write_text("admin-x")
        (self.home / "webhook-secret").write_text("x")
        (self.folder / "FILE").write_text("no backup")

    def run(self, *commands: list[str]) -> list[Ended]:
        environment = {
            "PATH": os.environ["PATH"], "COLUMNS": "200", "DARKROOM_HOME": str(self.home), "DARKROOM_PORT": "9",
            "DARKROOM_WEIGHTS": str(REPOSITORY / "weights"),
            "DARKROOM_MODEL_CONFIGS": str(self.folder / "model_configs"), **self.settings,
        }  # fmt: skip
        named = {"FILE": str(self.folder / "FILE"), "FOLDER": str(self.folder / "backups")}
        runs = [Run([named.get(each, each) for each in command], environment, self.uid) for command in commands]
        return self.commands.run(runs)

    def state(self) -> dict[str, bytes]:
        """Every file of the folder, by its path."""
        return {str(path): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    commands = Commands()
    yield commands
    commands.stop()


@pytest.fixture
def place(commands: Commands) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="darkroom-place-") as folder:  # pytest's own are closed to other users
        Path(folder).chmod(0o755)
        place = Place(Path(folder) / "place", commands)
        place.make()
        yield place


def of(every: list[Ended], *commands: list[str]) -> list[Ended]:
    """Those of these commands."""
    return [each for each in every if any(each.arguments[: len(begin)] == begin for begin in commands)]


def assert_one_line(ended: list[Ended], *, status: int = 1) -> None:
    for each in ended:
        assert (each.status, each.output) == (status, ""), each
        assert "Traceback" not in each.errors, each
        assert "Unexpected" not in each.errors, each
        assert each.errors.count("\n") == 1, each


def assert_no_traceback(ended: list[Ended]) -> None:
    for each in ended:
        assert each.status in {0, 1, 2}, each
        assert "Traceback" not in each.errors + each.output, each
        assert "Unexpected" not in each.errors, each


def test_every_command_is_in_the_table() -> None:
    def paths(group: TyperGroup, before: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, command in group.commands.items():
            here = (*before, name)
            yield from paths(command, here) if isinstance(command, TyperGroup) else (here,)

    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    tried = {tuple(command) for command in EVERY}
    assert [path for path in paths(root, ()) if not any(each[: len(path)] == path for each in tried)] == []


def test_a_home_without_a_server_is_refused_and_nothing_is_made(tmp_path: Path, commands: Commands) -> None:
    place = Place(tmp_path, commands)
    (tmp_path / "FILE").write_text("no backup")
    shutil.copytree(REPOSITORY / "model_configs", tmp_path / "model_configs")
    before = place.state()
    ended = place.run(*READING, *WRITING, *ASKING, ["backup", "FOLDER"])
    assert_one_line(ended)
    for each in ended:
        assert f"Looked in: {place.home}, which DARKROOM_HOME names" in each.errors
    assert_no_traceback(place.run(*CATALOG, DOCTOR))
    assert place.state() == before
    assert not place.home.exists()


@pytest.mark.daily("what?x=1", "a#b")
@pytest.mark.parametrize("path", ["what?x=1", "100%20", "a#b", "hé 家", "a b", "sqlite:", "x%y&z"])
def test_a_home_of_any_name_has_its_database_inside(tmp_path: Path, path: str, commands: Commands) -> None:
    place = Place(tmp_path / path, commands)
    place.make()
    created, listed = place.run(["keys", "create", "new"], ["keys", "list", "--csv"])
    assert (created.status, listed.status) == (0, 0), created
    assert "new" in listed.output
    assert [each.name for each in tmp_path.iterdir()] == [path]
    assert place.database.read_bytes().startswith(b"SQLite format 3")


def test_nothing_but_the_start_of_a_server_migrates(place: Place) -> None:
    set_schema(place, "0007")
    before = place.state()
    ended = place.run(*READING, *WRITING)
    assert_one_line(ended)
    assert all(f"has the schema 0007, and this version has {newest_schema()}" in each.errors for each in ended)
    assert place.state() == before
    (saved,) = place.run(["backup", "FOLDER"])  # before the upgrade
    assert (saved.status, saved.errors) == (0, "")
    assert "schema 0007" in saved.output


@pytest.mark.nightly
def test_the_database_of_a_newer_version_is_refused(place: Place) -> None:
    set_schema(place, "0099")
    before = place.state()
    ended = place.run(*READING, *WRITING, ["backup", "FOLDER"], SERVE)
    assert_one_line(ended)
    assert all("schema 0099, which is newer" in each.errors for each in ended)
    assert {name: place.state()[name] for name in before} == before
    (doctor,) = place.run(DOCTOR)
    assert doctor.status == 1
    assert "schema 0099, which is newer" in " ".join(doctor.output.split())


@pytest.mark.nightly
def test_a_user_without_a_name_runs_every_command(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can run a command as another user")
    place.uid = NAMELESS
    give(place.folder, NAMELESS)
    ended = place.run(*READING, *WRITING, ["backup", "FOLDER"], ["audit", "--csv"])
    assert [each.status for each in ended] == [0] * len(ended), ended
    assert f"cli:uid{NAMELESS}" in ended[-1].output
    assert_no_traceback(place.run(*CATALOG, *ASKING, *CLUSTER, DOCTOR))


def test_another_users_home_is_said_to_be_one(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can run a command as another user")
    place.home.chmod(0o700)
    place.uid = NAMELESS
    every = place.run(*EVERY)
    assert_no_traceback(every)
    ended = of(every, *READING, *WRITING, *ASKING, ["backup"], SERVE)
    assert_one_line(ended)
    assert [each for each in ended if str(place.home) not in each.errors] == []
    (doctor,) = of(every, DOCTOR)
    assert doctor.status == 1
    assert "can't be" in doctor.output


@pytest.mark.nightly
def test_a_read_only_disk(place: Place) -> None:
    with read_only(place.folder):
        every = place.run(*EVERY)
        assert_no_traceback(every)
        assert_one_line(of(every, *WRITING, SERVE, ["backup"], ["restore"]))


@pytest.mark.nightly
def test_a_broken_catalog(place: Place) -> None:
    (place.folder / "model_configs" / "alpha.toml").write_text("x = [")
    every = place.run(*EVERY)
    assert_no_traceback(every)
    ended = of(every, ["keys", "create"], ["keys", "set"], ["models"], SERVE)
    assert_one_line(ended)
    assert all("alpha.toml" in each.errors for each in ended)
    assert [each.status for each in of(every, ["keys", "list"], ["keys", "revoke"])] == [0, 0]


@pytest.mark.daily("added")
@pytest.mark.parametrize("where", ["added", "in place of the last"])
def test_arguments_that_are_not_utf8(place: Place, where: str) -> None:
    odd = f"{place.folder}/\udcff"
    begun = [*EVERY, ["policy", "test"], ["keys", "create", "--note"]]
    if where != "added":
        begun = [command[:-1] for command in EVERY if len(command) > 1]
    assert_no_traceback(place.run(*([*command, odd] for command in begun)))


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("home/admin-key", [*ASKING, SERVE]), ("home/webhook-secret", [SERVE]),
        ("model_configs/alpha.toml", [["models"], SERVE]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("content", [b"\xff\xfe\0a", b""], ids=["bytes", "empty"])
@pytest.mark.daily("bytes-home/admin-key*", "bytes-model_configs*")
def test_files_that_are_not_text(place: Place, path: str, refused: list[list[str]], content: bytes) -> None:
    if path.endswith(".toml") and not content:
        pytest.skip("an empty catalog file has no models")
    (place.folder / path).write_bytes(content)
    assert_no_traceback(place.run(*(each for each in EVERY if each not in [*refused, SERVE])))
    ended = place.run(*refused)
    assert_one_line(ended)
    assert [each for each in ended if Path(path).name not in each.errors] == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"DARKROOM_DATABASE": "postgresql+psycopg://a@nowhere.invalid/x?connect_timeout=1"}, "nowhere.invalid"),
        ({"DARKROOM_DATABASE": "postgresql+psycopg://a@127.0.0.1:9/x"}, "127.0.0.1"),
    ],
)
def test_a_database_out_of_reach(place: Place, settings: dict[str, str], words: str) -> None:
    place.settings = settings
    ended = place.run(*READING, ["keys", "create", "new"], ["backup", "FOLDER"])
    assert_one_line(ended)
    assert all(words in each.errors for each in ended), ended


def test_a_damaged_database(place: Place) -> None:
    place.database.write_bytes(b"no database" * 500)
    every = place.run(*EVERY)
    assert_no_traceback(every)
    assert_one_line(of(every, *READING, *WRITING, ["backup"]))


def test_a_port_in_use_and_an_unknown_host(place: Place) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        place.settings = {"DARKROOM_PORT": str(taken.getsockname()[1])}
        (used,) = place.run(SERVE)
    place.settings = {"DARKROOM_HOST": "nowhere.invalid"}
    unknown, asked = place.run(SERVE, ["reload"])
    assert_one_line([used, unknown, asked])
    assert "DARKROOM_PORT" in used.errors
    assert "nowhere.invalid" in unknown.errors
    assert "nowhere.invalid" in asked.errors


@pytest.mark.daily("200-{}", "502*")
@pytest.mark.parametrize(("status", "body"), [(200, b"hello"), (200, b"{}"), (502, b"<html>"), (401, b'{"error": 1}')])
def test_another_program_at_the_port(place: Place, status: int, body: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever).start()
        place.settings = {"DARKROOM_PORT": str(other.server_port)}
        drawn = place.folder / "drawn.png"
        drawn.write_bytes(encode_file(Image.new("RGB", (8, 8)), Encoding("png"), {"prompt": "x", "seed": 1}))
        ended = place.run(*ASKING, ["reproduce", str(drawn), "--key", "k"])
        others = place.run(["models"], ["checkpoints", "list"], DOCTOR)
        other.shutdown()
    assert_one_line(ended)
    assert [each for each in ended if "that is no Darkroom server" not in each.errors] == []
    assert_no_traceback(others)


def test_a_full_disk(place: Place) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(place.folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk")
    try:
        place.make()
        with (place.folder / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while filler.write(b"x" * 4096):
                pass
        every = place.run(*READING, *WRITING, *FILES, DOCTOR, SERVE)
        assert_no_traceback(every)
        assert_one_line(of(every, *WRITING, SERVE, ["backup"]))
    finally:
        subprocess.run(["umount", place.folder], check=True)


@pytest.mark.daily(">&--0", ">/dev/full-1")
@pytest.mark.parametrize(
    ("redirected", "status"),
    [(">&-", 0), ("<&-", 0), ("2>&-", 0), ("<&- >&- 2>&-", 0), ("| true", 1), (">/dev/full", 1)],
)
def test_output_that_nobody_reads(place: Place, redirected: str, status: int) -> None:
    settings = {"DARKROOM_HOME": str(place.home), "DARKROOM_MODEL_CONFIGS": str(place.folder / "model_configs")}
    line = f"set -o pipefail; {shlex.quote(sys.executable)} -m darkroom keys list {redirected}"
    environment = {"PATH": os.environ["PATH"], **settings}
    ended = subprocess.run(
        ["bash", "-c", line], env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert ended.returncode == status, ended
    assert ended.stderr.count("\n") == (redirected == ">/dev/full"), ended


def set_schema(place: Place, version: str) -> None:
    """Say that the database has another version's schema."""
    database = Database(Settings(home=place.home).database_url)
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
    database.dispose()


def give(folder: Path, uid: int) -> None:
    """Make a user the owner of a folder and of all in it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """As after a disk error, when the system mounts the file system again so."""
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)
