"""A cluster for tests: two nodes of Ray on this machine and two servers that use their engines, each started as an
operator does, with a PostgreSQL and an S3 server of its own."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from server.accounts.db import Database
from server.accounts.keys import create_key, hash_secret
from server.backends.cluster.transport import NAMESPACE
from tests.support.harness import REPOSITORY, Server, free_port, until
from tests.support.object_store import object_store
from tests.support.postgresql import Cluster
from tests.support.tiny_chat_checkpoints import make_qwen
from tests.support.tiny_checkpoints import make_sd
from tests.support.tiny_server import write_tiny_catalog

ENGINES = """
[[engines]]
kind = "image"
device = "cpu"
count = 1
nodes = { box = "a" }

[[engines]]
kind = "image"
device = "cpu"
count = 1
nodes = { box = "b" }

[[engines]]
kind = "chat"
device = "cpu"
count = 1
nodes = { box = "a" }
"""
TOKEN = secrets.token_hex(32)  # of all clusters of this process: Ray's client reads it once


@dataclass
class RayNode:
    """A machine: a home of its own, and what `ray start` of this Python has started there."""

    home: Path
    environment: Mapping[str, str]
    python: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.home.name

    def start(self, *options: str, **settings: str) -> None:
        """`ray start`, with settings besides the node's own."""
        command = [str(self.python), "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=0", *options]
        command += [f"--object-store-memory={2**28}"]
        command += [f"--labels=box={self.name}", f"--node-name={self.name}"]
        environment = {**os.environ, **self.environment, "DARKROOM_HOME": str(self.home), **settings}
        log = self.home / "ray.log"
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
        until(lambda: process.poll() is not None or "Ray runtime started" in log.read_text(errors="replace"))
        assert process.poll() is None, log.read_text()
        self.process = process

    def kill(self) -> None:
        """All processes of this node at once, as if it had lost its power."""
        if self.process is not None and self.process.poll() is None:
            first = psutil.Process(self.process.pid)
            for process in [first, *first.children(recursive=True)]:
                process.kill()
            self.process.wait()


@dataclass
class RayCluster:
    """Two nodes, `a` the first, and two servers with their database at `url`."""

    url: str
    a: RayNode
    b: RayNode
    head: str
    ray: Any
    servers: list[Server] = field(default_factory=list)

    def key(self) -> str:
        database = Database(self.url)
        try:
            _, secret = create_key(database, "test", frozenset({"alpha-image-per-call", "chat"}), by="test")
        finally:
            database.dispose()
        return secret

    def count(self, table: str, secret: str) -> int:
        """Rows of a key."""
        sql = f"SELECT count(*) FROM {table} JOIN keys ON keys.id = key_id WHERE secret_hash = %s"
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            (count,) = connection.execute(sql.encode(), [hash_secret(secret)]).fetchone() or (0,)
        return int(count)

    def running(self, secret: str) -> list[str]:
        """A key's calls that have a hold."""
        sql = "SELECT call_id FROM holds JOIN keys ON keys.id = key_id WHERE secret_hash = %s AND holds.state = 'held'"
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            return [str(row[0]) for row in connection.execute(sql.encode(), [hash_secret(secret)]).fetchall()]

    def join(self, **settings: str) -> None:
        """Let the second node join."""
        self.b.start(f"--address={self.head}", **settings)

    def engine(self, name: str) -> dict[str, Any]:
        """What an engine says of itself; nothing of one that does not run."""
        try:
            actor = self.ray.get_actor(name, NAMESPACE)
            state: dict[str, Any] = self.ray.get(actor.describe.remote(), timeout=10)
        except (ValueError, self.ray.exceptions.RayError):
            return {}
        return state

    def jobs(self, name: str) -> int:
        return int(self.engine(name).get("jobs", 0))

    def wait_engine(self, name: str, links: int = 2) -> dict[str, Any]:
        """Until an engine is up and linked to so many servers."""

        def is_up() -> bool:
            found = self.engine(name)
            return bool(found.get("checkpoints")) and found["servers"] == links

        until(is_up, interval_s=0.2)
        return self.engine(name)


@contextmanager
def new_cluster(folder: Path) -> Iterator[RayCluster]:
    """With a PostgreSQL and an S3 server of its own."""
    with (
        object_store() as store,
        Cluster.temporary() as database,
        ray_cluster(folder, database.new("template0"), store.url, store.environment) as cluster,
    ):
        yield cluster


@contextmanager
def ray_cluster(
    folder: Path,
    url: str,
    storage: str,
    environment: Mapping[str, str],
    *,
    command: Path | None = None,
    code: Path = REPOSITORY,
    **settings: str,
) -> Iterator[RayCluster]:
    """Nothing of it runs when this is left. `command`: an installed `darkroom`, beside its Python, and `code` the
    folder in which it is started. `settings`: more of the servers and the nodes."""
    import ray

    weights, configs, file = folder / "weights", folder / "configs", folder / "cluster.toml"
    for name in ("tiny", "other"):
        make_sd(weights / name)
    make_qwen(weights / "tiny-qwen")
    configs.mkdir()
    write_tiny_catalog(configs, chat=True)
    file.write_text(ENGINES)
    port = free_port()
    head = f"127.0.0.1:{port}"
    own = {"device": "cpu", "weights": str(weights), **settings}
    shared = {"database": url, "storage": storage, "cluster": str(file), "cluster_secret": TOKEN, "lease_s": "10"}
    python = command.with_name("python") if command else Path(sys.executable)
    of_node = {f"DARKROOM_{key.upper()}": each for key, each in own.items()}
    nodes = [RayNode(folder / name, of_node, python) for name in "ab"]
    servers = []
    for index in range(2):
        at = {"gateway_url": f"http://127.0.0.1:{free_port()}"}
        home = folder / f"server-{index}"
        servers.append(Server(home, weights, configs, {**shared, **own, **at}, command=command, code=code))
    with ExitStack() as cleanup, pytest.MonkeyPatch.context() as patch:
        of_ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
        for name, value in {**environment, **of_ray, "RAY_ADDRESS": head}.items():
            patch.setenv(name, value)
        for node in nodes:
            node.home.mkdir()
            cleanup.callback(node.kill)
        nodes[0].start("--head", f"--port={port}", "--include-dashboard=false")
        ray.init(address=head, namespace=NAMESPACE, log_to_driver=False)
        cleanup.callback(ray.shutdown)
        cluster = RayCluster(url, *nodes, head, ray, servers)
        cluster.join()
        for server in servers:
            cleanup.callback(server.kill)
            server.start(wait=False)
        for server in servers:
            server.wait_ready()
        cluster.wait_engine("image-0-0")
        cluster.wait_engine("image-1-0")
        yield cluster
        for server in servers:
            server.stop()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
