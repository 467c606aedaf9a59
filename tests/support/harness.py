"""A real server for tests: the `darkroom` command in a process of its own, on a free port, with a home of its own."""

import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from openai import DefaultHttpxClient, OpenAI

from pipelines.protocol.messages import STILL_TRIED
from server.accounts import report, results
from server.accounts.db import Database
from server.backends.object_storage import open_storage
from server.settings import Settings
from tests.support.shared import shared_folder

REPOSITORY = Path(__file__).resolve().parents[2]
START_LIMIT_S = 600  # long enough for a busy machine, as every limit here; under the limit of a test
CALL_LIMIT_S = 280  # far under the limit of a test
PORTS = range(20_000, 30_000)  # above those that Ray gives to its workers, below the kernel's for outgoing connections

# The command with plain workers, which start at once, for what is about all the rest
PLAIN = "darkroom" if os.environ.get("WORKERS") == "real" else "benchmarks.plain_server"

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # to read all certificates takes a twentieth of a second
_leased_ports: list[socket.socket] = []


def free_port() -> int:
    """A TCP port that no other process of tests gets while this one lives.

    A server binds it seconds later. A UDP socket of the same number is the lease that other processes of tests see.
    """
    while True:
        port = random.choice(PORTS)
        lease = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            lease.bind(("127.0.0.1", port))
            with socket.socket() as check:
                check.bind(("127.0.0.1", port))
        except OSError:
            lease.close()
        else:
            _leased_ports.append(lease)
            return port


@dataclass
class Server:
    """`darkroom serve`, with what a test needs to reach it."""

    home: Path
    weights: Path
    configs: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    descriptors: int | None = None  # as many as `ulimit -n` allows it
    program: str = "darkroom"  # the module with the `darkroom` command
    code: Path = REPOSITORY  # in which the module is, and the server is started
    command: Path | None = None  # an installed `darkroom` in place of the module

    def start(self, *, wait: bool = True) -> "Server":
        self.port = free_port()
        self.home.mkdir(parents=True, exist_ok=True)
        self._share_capability_checks()
        log = (self.home / "server.log").open("ab")
        command = [str(self.command)] if self.command else [sys.executable, "-m", self.program]
        command = [*command, "serve"]
        if self.descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {self.descriptors} && exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd=self.code)
        try:
            if wait:
                self.wait_ready()
        except BaseException:
            self.kill()  # no fixture has it yet
            raise
        return self

    def _share_capability_checks(self) -> None:
        """Let the servers of a test run try each checkpoint once. A record is of the same files, options and code."""
        shared, records = shared_folder(), self.home / "probes"
        if shared is not None and self.program == "darkroom" and not records.exists():
            (shared / "probes").mkdir(mode=0o700, exist_ok=True)
            records.symlink_to(shared / "probes")

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "DARKROOM_HOME": str(self.home),
            "DARKROOM_WEIGHTS": str(self.weights),
            "DARKROOM_MODEL_CONFIGS": str(self.configs),
            "DARKROOM_PORT": str(self.port),
            "DARKROOM_ANSWERS_WITH_BYTES": "true",  # tests look at the images of their answers
            **{f"DARKROOM_{name.upper()}": value for name, value in self.settings.items()},
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DARKROOM_")}
        return {**inherited, **own}

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        return (self.home / "dev-key").read_text().strip()

    @property
    def admin_key(self) -> str:
        return (self.home / "admin-key").read_text().strip()

    @property
    def log(self) -> str:
        return (self.home / "server.log").read_text(errors="replace")

    def openai(self, key: str | None = None, **options: Any) -> OpenAI:
        own = {"max_retries": 0, "http_client": DefaultHttpxClient(verify=NO_TLS)}
        return OpenAI(base_url=f"{self.base}/v1", api_key=key or self.key, **{**own, **options})

    def http(self, key: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.Client(base_url=self.base, headers=headers, timeout=CALL_LIMIT_S, trust_env=False)

    def new_key(self, name: str, **fields: Any) -> str:
        """Return the secret of a new key, with the fields of POST /admin/keys."""
        with self.http(self.admin_key) as client:
            made = client.post("/admin/keys", json={"name": name, **fields}).raise_for_status().json()
        return str(made["secret"])

    def readiness(self) -> dict[str, Any]:
        """What operators see."""
        headers = {"Authorization": f"Bearer {self.admin_key}"}
        answer: dict[str, Any] = httpx.get(f"{self.base}/readyz", headers=headers, timeout=60, trust_env=False).json()
        return answer

    def wait_ready(self, *, tried: bool = True) -> None:
        """Wait until it takes calls and, with `tried`, knows all that its checkpoints can do."""
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, f"the server ended:\n{self.log}"
            with contextlib.suppress(httpx.HTTPError, FileNotFoundError):  # the admin key is made at the first start
                readiness = self.readiness()
                left = any(STILL_TRIED in each["detail"] for each in readiness["checkpoints"].values())
                if readiness["status"] == "ready" and not (tried and left):
                    return
            time.sleep(0.1)
        raise AssertionError(f"not ready after {START_LIMIT_S} s:\n{self.log}")

    def darkroom(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run an operator's command on the same home."""
        command = [str(self.command)] if self.command else [sys.executable, "-m", "darkroom"]
        return subprocess.run(
            [*command, *arguments],
            env={**self.environment, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,  # a swap loads a checkpoint
            cwd=self.code if self.command else REPOSITORY,
            check=False,
        )

    @property
    def loaded_mib(self) -> int:
        """The memory of the API server's process."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) // 1024

    @contextlib.contextmanager
    def connection(self, head: str = "", content: bytes = b"", source: str = "127.0.0.1") -> Iterator[socket.socket]:
        """A connection on which this much of a request has been sent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60, source_address=(source, 0)) as connection:
            connection.sendall(head.replace("\n", "\r\n").encode() + content)
            yield connection

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=CALL_LIMIT_S)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=CALL_LIMIT_S)

    def wait_dead(self) -> int:
        """The exit status of a server that ends by itself."""
        assert self.process is not None
        return self.process.wait(timeout=CALL_LIMIT_S)

    @contextlib.contextmanager
    def unread_call(self, path: str, body: Mapping[str, Any], key: str | None = None, **headers: str) -> Iterator[None]:
        """Send a call whose answer is not read, and disconnect at the end of the block."""
        content = json.dumps(body)
        fields = {"Host": "x", "Authorization": f"Bearer {key or self.key}", "Content-Length": len(content), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n{content}".encode())
            yield


MakeServer = Callable[..., Server]  # by its settings


@contextlib.contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Suspend a worker: its jobs stay where they are, so that a test does not race against their end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # the test has killed it
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def frozen(server: Server) -> Iterator[None]:
    """The API server's process does nothing, as on a machine that hangs."""
    assert server.process is not None
    with suspended(server.process.pid):
        yield


@contextlib.contextmanager
def locked_database(server: Server) -> Iterator[None]:
    """Another process has the lock of the server's SQLite database, as a forgotten sqlite3 shell does."""
    with contextlib.closing(sqlite3.connect(server.home / "darkroom.db", isolation_level=None, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def until(condition: Callable[[], bool], interval_s: float = 0.05) -> None:
    """Wait for a condition that is sure to come. The limit only ends a test that has failed."""
    deadline = time.monotonic() + CALL_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(interval_s)


def assert_clean(server: Server) -> None:
    """Charges, holds and stored results agree, as `darkroom ledger --check` says it."""
    where = {name: value for name, value in server.settings.items() if name in {"database", "storage"}}
    settings = Settings(home=server.home, **where)
    database = Database(settings.database_url)
    try:
        assert report.check(database) + results.check(database, open_storage(settings.images).exists) == []
    finally:
        database.dispose()


def charges(server: Server) -> int:
    """How many calls have been charged, all keys together."""
    return count_rows(server, "entries")


def count_rows(server: Server, table: str, condition: str = "true") -> int:
    """How many rows of the server's SQLite database meet an SQL condition."""
    with contextlib.closing(sqlite3.connect(f"file:{server.home / 'darkroom.db'}?mode=ro", uri=True)) as database:
        count: int = database.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()[0]
    return count
