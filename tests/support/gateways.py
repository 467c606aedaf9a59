"""Two servers on one PostgreSQL, for tests: of tiny models, with a home each."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from typing_extensions import Unpack

from server.accounts.db import Database
from server.accounts.keys import KeyChanges, create_key, hash_secret, update_key
from tests.support.harness import Server, free_port, suspended
from tests.support.postgresql import Cluster
from tests.support.tiny_server import write_tiny_files

LEASE_S = 10  # a busy machine renews in time; a dead server is given up within half a minute


@dataclass
class Pair:
    """Two servers and their database. `a` draws what the tests begin."""

    a: Server
    b: Server
    url: str
    cluster: Cluster

    @property
    def servers(self) -> tuple[Server, Server]:
        return self.a, self.b

    def key(self, **limits: Unpack[KeyChanges]) -> str:
        """The secret of a new key."""
        database = Database(self.url)
        try:
            key, secret = create_key(database, "test", frozenset({"alpha-image-per-call", "chat"}), by="test")
            update_key(database, key.id, limits, by="test")
        finally:
            database.dispose()
        return secret

    def key_id(self, secret: str) -> str:
        return str(self.rows("SELECT id FROM keys WHERE secret_hash = %s", hash_secret(secret))[0][0])

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            return connection.execute(sql.encode(), values).fetchall()

    def charges(self, secret: str) -> int:
        return int(self.rows("SELECT count(*) FROM entries WHERE key_id = %s", self.key_id(secret))[0][0])

    def running(self, secret: str) -> list[str]:
        """The calls that have a hold."""
        held = "SELECT call_id FROM holds WHERE key_id = %s AND state = 'held'"
        return [str(row[0]) for row in self.rows(held, self.key_id(secret))]

    @contextlib.contextmanager
    def held_up(self, server: Server) -> Iterator[None]:
        """The image worker of a server does not get on."""
        with suspended(server.readiness()["worker_pid"]):
            yield


@contextlib.contextmanager
def two_gateways(
    folder: Path, program: str = "darkroom", *, own_files: bool = False, chat: bool = True, **settings: str
) -> Iterator[Pair]:
    """Both start at once on an empty database. With `own_files` each has a catalog and weights of its own."""
    with Cluster.temporary() as cluster:
        url = cluster.new("template0")
        servers = []
        for name in ("a", "b"):
            files = folder / name if own_files else folder
            if not (files / "weights").exists():
                write_tiny_files(files, chat=chat)
            shared = {**gateway_settings(url, folder), **settings}
            servers.append(
                Server(folder / name / "home", files / "weights", files / "configs", shared, program=program)
            )
        try:
            for server in servers:
                server.start(wait=False)
            for server in servers:
                server.wait_ready()
            yield Pair(*servers, url, cluster)
        finally:
            for server in servers:
                server.kill()


def gateway_settings(url: str, folder: Path) -> dict[str, str]:
    """Of one of the servers that share this database and folder."""
    return {
        "database": url,
        "gateway_url": f"http://127.0.0.1:{free_port()}",
        "cluster_secret": "of this test and of no other cluster",
        "storage": str(folder / "results"),
        "lease_s": str(LEASE_S),
        "retry_grace_s": "200",
    }
