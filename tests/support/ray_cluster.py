"""A cluster for tests: two nodes on this machine, by the commands that operators use, with a PostgreSQL and an S3
server of its own."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg

from server.accounts.db import Database
from server.accounts.keys import create_key, hash_secret
from server.backends.cluster.roster import NAMESPACE
from server.cli.cluster.ray_node import connected, find_supervisor, read_node, set_environment
from tests.support.harness import CALL_LIMIT_S, REPOSITORY, START_LIMIT_S, free_port, until
from tests.support.object_store import object_store
from tests.support.postgresql import Cluster
from tests.support.processes import command_of, group
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
SUPERVISOR_TITLE = b"ray::Supervisor"
RAY_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_USAGE_STATS_ENABLED")
RAY_VARIABLES += ("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S",)


@dataclass
class ClusterNode:
    """A machine: a home of its own, and the commands on it."""

    home: Path
    weights: Path
    configs: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.home.name

    def cluster(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`darkroom cluster ...`"""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DARKROOM_", "RAY_"))}
        own = {
            "DARKROOM_HOME": str(self.home),
            "DARKROOM_WEIGHTS": str(self.weights),
            "DARKROOM_MODEL_CONFIGS": str(self.configs),
            "DARKROOM_DEVICE": "cpu",
            "DARKROOM_LEASE_S": "10",
            "COLUMNS": "200",
        }
        return subprocess.run(
            [sys.executable, "-m", "darkroom", "cluster", *arguments],
            env={**inherited, **own, **self.environment},
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,
            cwd=REPOSITORY,
            check=False,
        )

    def kill(self) -> None:
        """All of Ray's processes of this node at once, as if it had lost its power."""
        if (node := read_node(self.home)) is not None:
            first = psutil.Process(node.pid)
            for process in [first, *first.children(recursive=True)]:
                process.kill()
            until(lambda: not node.is_running)


@dataclass
class Books:
    """A cluster's database, at `url`."""

    url: str

    def key(self) -> str:
        database = Database(self.url)
        try:
            _, secret = create_key(database, "test", frozenset({"alpha-image-per-call", "chat"}), by="test")
        finally:
            database.dispose()
        return secret

    def count(self, table: str, secret: str, condition: str = "true") -> int:
        """Rows of a key."""
        sql = f"SELECT count(*) FROM {table} JOIN keys ON keys.id = key_id WHERE secret_hash = %s AND {condition}"
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            (count,) = connection.execute(sql.encode(), [hash_secret(secret)]).fetchone() or (0,)
        return int(count)

    def running(self, secret: str) -> list[str]:
        """A key's calls that have a hold."""
        sql = "SELECT call_id FROM holds JOIN keys ON keys.id = key_id WHERE secret_hash = %s AND holds.state = 'held'"
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            return [str(row[0]) for row in connection.execute(sql.encode(), [hash_secret(secret)]).fetchall()]


@dataclass
class RayCluster(Books):
    """Two nodes, `a` the first. `supervisor` is called in place of `darkroom cluster status`, which takes seconds."""

    a: ClusterNode
    b: ClusterNode
    head: str
    port: int  # of the first gateway
    ray: Any

    def status(self) -> dict[str, Any]:
        supervisor = find_supervisor(self.ray)
        status: dict[str, Any] = self.ray.get(supervisor.status.remote(), timeout=CALL_LIMIT_S)
        return status

    def commands(self) -> list[tuple[int, bytes]]:
        """Of all processes of both nodes. Ray writes there what a process is."""
        nodes = [read_node(node.home) for node in (self.a, self.b)]
        return [(pid, command_of(pid)) for node in nodes if node is not None for pid in group(node.pid)]

    def pid(self, title: bytes) -> int:
        """Of a process with that title; 0 if there is none."""
        return next((pid for pid, command in self.commands() if command.startswith(title)), 0)

    def engine(self, name: str) -> dict[str, Any]:
        return next(engine for engine in self.status()["engines"] if engine["name"] == name)

    def jobs(self, name: str) -> int:
        """Of an engine, asked of itself; none of one that is not there."""
        return int(self._request(name).get("jobs", 0))

    def links(self, name: str) -> int:
        """Gateways that an engine has."""
        return int(self._request(name).get("servers", 0))

    def given_up(self, name: str) -> int:
        """Gateways whose jobs an engine has dropped."""
        return int(self._request(name).get("servers_given_up", 0))

    def has(self, name: str) -> bool:
        """Whether there is an engine or a gateway of that name."""
        try:
            self.ray.get_actor(name, NAMESPACE)
        except ValueError:
            return False
        return True

    def _request(self, name: str) -> dict[str, Any]:
        try:
            actor = self.ray.get_actor(name, NAMESPACE)
            state: dict[str, Any] = self.ray.get(actor.state.remote(), timeout=60)
        except (ValueError, self.ray.exceptions.RayError):
            return {}
        return state

    def gateway(self, index: int) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["gateways"][index]
        return found

    def wait_engine(self, name: str, links: int = 2) -> dict[str, Any]:
        """Until an engine is up and linked to so many gateways."""

        until(lambda: bool(self._request(name).get("checkpoints")) and self.links(name) == links, interval_s=0.2)
        return self._request(name)

    def client(self, index: int, key: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.gateway(index)["url"], headers=headers, timeout=CALL_LIMIT_S, trust_env=False)

    def join(self, node: ClusterNode) -> subprocess.CompletedProcess[str]:
        done = node.cluster("join", "--head", self.head, "--name", node.name, "--label", f"box={node.name}")
        assert done.returncode == 0, done.stderr
        return done


def make_nodes(folder: Path, environment: Mapping[str, str]) -> tuple[ClusterNode, ClusterNode]:
    weights, configs = folder / "weights", folder / "configs"
    for name in ("tiny", "other"):
        make_sd(weights / name)
    make_qwen(weights / "tiny-qwen")
    configs.mkdir()
    write_tiny_catalog(configs, chat=True)
    for name in ("a", "b"):
        (folder / name).mkdir()
    return ClusterNode(folder / "a", weights, configs, environment), ClusterNode(
        folder / "b", weights, configs, environment
    )


def write_config(path: Path, database: str, storage: str, engines: str = ENGINES) -> Path:
    ports = {name: free_port() for name in ("port", "private_port")}
    while not ports["port"] + 2 < ports["private_port"]:
        ports["private_port"] = free_port()
    lines = [f'database = "{database}"', f'storage = "{storage}"', 'host = "127.0.0.1"', "gateways = 2"]
    lines += [f"{name} = {port}" for name, port in ports.items()]
    lines.append(f"ray_port = {free_port()}")
    path.write_text("\n".join(lines) + engines)
    return path


def write_token(home: Path) -> None:
    """Write the token of this process's clusters, where `darkroom cluster up` finds it."""
    file = home / "cluster-token"
    file.touch(mode=0o600)
    file.write_text(TOKEN)


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
def ray_cluster(folder: Path, url: str, storage: str, environment: Mapping[str, str]) -> Iterator[RayCluster]:
    """It is down when this is left."""
    kept = {name: os.environ.get(name) for name in RAY_VARIABLES}
    with ExitStack() as cleanup:
        a, b = make_nodes(folder, environment)
        write_token(a.home)
        config = write_config(folder / "cluster.toml", url, storage)
        for node in (a, b):
            cleanup.callback(node.kill)
        up = a.cluster("up", "--config", str(config), "--name", "a", "--label", "box=a")
        assert up.returncode == 0, up.stderr
        shutil.copy(a.home / "cluster-token", b.home / "cluster-token")
        set_environment(a.home)
        node = read_node(a.home)
        assert node is not None
        with connected(node.address) as ray:
            cluster = RayCluster(url, a, b, node.address, int(tomllib.loads(config.read_text())["port"]), ray)
            cluster.join(b)
            cluster.wait_engine("image-0")
            cluster.wait_engine("image-1")
            yield cluster
        assert "The cluster is down" in a.cluster("down").stdout
    for name, value in kept.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
