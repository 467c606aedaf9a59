"""pgbouncer in transaction mode: each transaction of a connection may run on another one of PostgreSQL's, so nothing
may be left in a session."""

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from server.accounts import report
from server.accounts.db import Database
from server.accounts.keys import create_key, list_keys
from server.accounts.ledger import Ledger
from server.accounts.paging import Page
from tests.support.harness import until
from tests.support.postgresql import UNPRIVILEGED, Cluster
from tests.unit.accounts.helpers import GROUPS, call, capture, clean, result

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
THREADS, OPERATIONS = 6, 80  # each
SETTINGS = """
[databases]
* = host={cluster} port=5432
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 100
ignore_startup_parameters = extra_float_digits
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")]


@pytest.fixture
def pooled(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database through pgbouncer."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    direct = cluster.new("template0")
    settings = Path(cluster.folder) / f"pgbouncer-{port}.ini"  # where an unprivileged user may read
    settings.write_text(SETTINGS.format(cluster=cluster.folder, port=port).replace("* =", "* = user=darkroom"))
    command = [str(PGBOUNCER), str(settings)]
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    with subprocess.Popen(command, user=user, cwd=cluster.folder, stderr=subprocess.DEVNULL) as process:
        name = direct.partition("@/")[2].partition("?")[0]

        def answers() -> bool:
            try:
                psycopg.connect(f"host=127.0.0.1 port={port} user=darkroom dbname={name}").close()
            except psycopg.OperationalError:
                return False
            return True

        try:
            until(answers)
            yield f"postgresql+psycopg://darkroom@127.0.0.1:{port}/{name}"
        finally:
            process.terminate()


def test_transactions_may_change_their_connections(pooled: str) -> None:
    databases = [Database(pooled), Database(pooled)]
    databases[0].migrate()
    key, _ = create_key(databases[0], "a", GROUPS)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        database = databases[number % 2]
        ledger = Ledger(database, f"me-{number % 2}")
        try:
            for each in range(OPERATIONS // 2):
                name = f"c{number}-{each}"
                ledger.hold(call(name, key.id))
                capture(ledger, name, [result(name)])
                list_keys(database)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(report.entries(databases[0], page=Page(1000))) == THREADS * OPERATIONS // 2
    assert clean(databases[0])
    for database in databases:
        database.dispose()
