"""A PostgreSQL server for tests, where it is installed."""

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg


class Cluster:
    """A temporary PostgreSQL server, which a test may stop and start."""

    def __init__(self, binaries: Path, folder: Path, user: str | None) -> None:
        self._binaries = binaries
        self._folder = folder
        self._user = user
        self._numbers = itertools.count()

    @classmethod
    @contextmanager
    def temporary(cls) -> "Iterator[Cluster | None]":
        """One that runs while this is entered; None where PostgreSQL is not installed."""
        pg_ctl = shutil.which("pg_ctl")
        if pg_ctl is None:
            yield None
            return
        user = "postgres" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        folder = Path(tempfile.mkdtemp(prefix="darkroom-pg-"))
        if user:
            shutil.chown(folder, user)
        cluster = cls(Path(pg_ctl).resolve().parent, folder, user)
        cluster.create()
        try:
            yield cluster
        finally:
            cluster.stop()
            shutil.rmtree(folder)

    def create(self) -> None:
        self._run("initdb", "--auth=trust", "--username=darkroom", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-F -c listen_addresses='' -k {self._folder}"
        self._run("pg_ctl", "--wait", "-l", str(self._folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "--wait", "-m", "immediate", "stop")

    def new(self, template: str = "test_0") -> str:
        """The URL of a new database."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(f"host={self._folder} user=darkroom dbname=postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return f"postgresql+psycopg://darkroom@/{name}?host={self._folder}"

    def _run(self, program: str, *options: str) -> None:
        command = [self._binaries / program, "-D", self._folder / "data", *options]
        subprocess.run(command, check=True, user=self._user, cwd=self._folder, stdout=subprocess.DEVNULL, timeout=120)
