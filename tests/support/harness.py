"""A real server for tests: the `darkroom` command in a process of its own, on a free port, with a home of its own."""

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

REPOSITORY = Path(__file__).resolve().parents[2]
START_LIMIT_S = 600  # for machines that do much else


@dataclass
class Server:
    """`darkroom serve`, with what a test needs to reach it."""

    home: Path
    weights: Path
    configs: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> "Server":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.home.mkdir(parents=True, exist_ok=True)
        log = (self.home / "server.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "server", "serve"], env=self.environment, stdout=log, stderr=log, cwd=REPOSITORY
        )
        try:
            if wait:
                self.wait_ready()
        except BaseException:
            self.kill()  # nobody else would
            raise
        return self

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "DARKROOM_HOME": str(self.home),
            "DARKROOM_WEIGHTS": str(self.weights),
            "DARKROOM_MODEL_CONFIGS": str(self.configs),
            "DARKROOM_PORT": str(self.port),
            **{f"DARKROOM_{name.upper()}": value for name, value in self.settings.items()},
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DARKROOM_")}
        return {**kept, **own}

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        return (self.home / "dev-key").read_text().strip()

    @property
    def log(self) -> str:
        return (self.home / "server.log").read_text(errors="replace")

    def openai(self, key: str | None = None, **options: Any) -> OpenAI:
        return OpenAI(base_url=f"{self.base}/v1", api_key=key or self.key, **{"max_retries": 0, **options})

    def http(self, key: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.Client(base_url=self.base, headers=headers, timeout=120, trust_env=False)

    def readiness(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.base}/readyz", timeout=10, trust_env=False).json()
        return answer

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, f"the server ended:\n{self.log}"
            with contextlib.suppress(httpx.HTTPError):
                if self.readiness()["status"] == "ready":
                    return
            time.sleep(0.1)
        raise AssertionError(f"not ready after {START_LIMIT_S} s:\n{self.log}")

    def darkroom(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the operator's, on the same home."""
        return subprocess.run(
            [sys.executable, "-m", "server", *arguments],
            env={**self.environment, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,  # a swap loads a checkpoint
            cwd=REPOSITORY,
            check=False,
        )

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=30)

    def wait_dead(self) -> int:
        """The exit status of a server that ends by itself."""
        assert self.process is not None
        return self.process.wait(timeout=60)


def charges(server: Server) -> int:
    """How many calls have been charged, all keys together."""
    with contextlib.closing(sqlite3.connect(f"file:{server.home / 'darkroom.db'}?mode=ro", uri=True)) as database:
        count: int = database.execute("SELECT count(*) FROM entries").fetchone()[0]
    return count
