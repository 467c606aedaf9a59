"""`make load`: 200 streams of chats and 50 image calls at once, by many keys.

Meanwhile a key that does nothing else asks for /healthz and /v1/models. Prints how long those took (p50, p99), how the
calls of the keys compare (the slowest key's mean over the fastest's), and the memory of the server.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from server.accounts.db import Database
from server.accounts.keys import create_key
from tests.support.harness import CALL_LIMIT_S, Server
from tests.support.processes import measured_growth
from tests.support.tiny_server import tiny_server

KEYS = 10
GROUPS = frozenset({"alpha-image-per-call", "chat"})
TOKENS = 64
SETTINGS = {"preload": "false", "chat_max_queue": "512", "max_queue": "128", "max_running_per_key": "64"}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": TOKENS,
    "stream": True,
    "logit_bias": {"0": -100, "2": -100},  # neither end token: all answers have the same length
}
IMAGE: dict[str, Any] = {"prompt": "a star", "size": "256x256", "steps": 4, "model": "alpha-image-2-count"}


@dataclass
class Load:
    """The calls, and how long they and the probes took."""

    server: Server
    statuses: Counter[str] = field(default_factory=Counter)
    checks_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    calls_s: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))  # by kind and key
    server_bytes: int = 0
    group_bytes: int = 0

    def run(self, chats: int, images: int, keys: int = KEYS) -> None:
        """All calls at once."""
        assert self.server.process
        database = Database(f"sqlite:///{self.server.home / 'darkroom.db'}")
        secrets = [create_key(database, f"load {i}", GROUPS)[1] for i in range(keys)]
        database.dispose()
        asyncio.run(self._send_all(1, 1, secrets[:1]))  # loads the checkpoints
        self.checks_s.clear()
        self.calls_s.clear()
        self.statuses.clear()
        with measured_growth(self.server.process.pid) as growth:
            asyncio.run(self._send_all(chats, images, secrets))
        self.server_bytes, self.group_bytes = growth.server_bytes, growth.group_bytes

    def fairness(self, kind: str) -> float:
        """The slowest key's mean time over the fastest's."""
        means = [statistics.mean(times) for (each, _), times in self.calls_s.items() if each == kind]
        return max(means) / min(means)

    def percentile_s(self, path: str, percent: int) -> float:
        times = sorted(self.checks_s[path])
        return times[min(len(times) - 1, len(times) * percent // 100)]

    async def _send_all(self, chats: int, images: int, secrets: list[str]) -> None:
        limits = httpx.Limits(max_connections=None)
        options: Any = {"base_url": self.server.base, "timeout": CALL_LIMIT_S, "trust_env": False, "limits": limits}
        async with httpx.AsyncClient(**options) as client:
            calls = [self._call(client, "chat", secrets[i % len(secrets)]) for i in range(chats)]
            calls += [self._call(client, "image", secrets[i % len(secrets)]) for i in range(images)]
            probing = asyncio.create_task(self._check(client))
            await asyncio.gather(*calls)
            probing.cancel()

    async def _call(self, client: httpx.AsyncClient, kind: str, secret: str) -> None:
        path, body = ("/v1/chat/completions", CHAT) if kind == "chat" else ("/v1/images/generations", IMAGE)
        began, headers = time.monotonic(), {"Authorization": f"Bearer {secret}"}
        answer = await client.post(path, json=body, headers=headers)
        ended = answer.status_code == 200 and (kind == "image" or answer.text.rstrip().endswith("data: [DONE]"))
        self.statuses[f"{kind} {answer.status_code}" + ("" if ended else " without an end")] += 1
        self.calls_s[kind, secret].append(time.monotonic() - began)

    async def _check(self, client: httpx.AsyncClient) -> None:
        headers = {"Authorization": f"Bearer {self.server.key}"}
        while True:
            for path in ("/healthz", "/v1/models"):
                began = time.monotonic()
                assert (await client.get(path, headers=headers)).status_code == 200
                self.checks_s[path].append(time.monotonic() - began)
            await asyncio.sleep(0.02)


def main() -> None:
    """Exits with 1 if a call failed."""
    chats, images = (int(argument) for argument in sys.argv[1:3] or ("200", "50"))
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        server = tiny_server(Path(folder), **SETTINGS).start()
        load = Load(server)
        try:
            load.run(chats, images)
        finally:
            server.kill()
    console.print(f"{dict(load.statuses)}, {KEYS} keys")
    for path, times in load.checks_s.items():
        p50, p99 = (load.percentile_s(path, percent) for percent in (50, 99))
        console.print(f"{path}: p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, of {len(times)}")
    console.print(f"slowest key over fastest: chats {load.fairness('chat'):.2f}, images {load.fairness('image'):.2f}")
    console.print(f"memory: the API server +{load.server_bytes / 1e6:.0f} MB, all +{load.group_bytes / 1e6:.0f} MB")
    sys.exit(set(load.statuses) != {"chat 200", "image 200"})


if __name__ == "__main__":
    main()
