"""`make chaos`: calls of all kinds while processes are killed, then the books are counted again from outside.

KILLS times, one process of the server dies by SIGKILL: the API server, the image or chat worker, a decoder, or
PostgreSQL; or PostgreSQL's two nodes change their places. Of two servers one dies or both, and is back at once or when
the other has given it up; and so does the way to their object store. After each death of an API server and of the
database, and at the end, the charges are recounted: every image that was answered is charged once and stored, no
failure is charged, no keyed call twice, no budget is exceeded, and nothing is left unsettled.

The workers are plain ones (`benchmarks.plain_worker`), which start at once: it is the books that are tried, and a
thousand kills take an hour instead of four. `real` has the workers of `darkroom serve`.
"""

import base64
import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from rich.console import Console
from sqlalchemy import URL

from benchmarks.recount import from_folder, read_books, recount, unsettled
from server.settings import Settings
from tests.support.gateways import two_gateways
from tests.support.harness import Server
from tests.support.object_store import ObjectStore, object_store
from tests.support.postgresql import Cluster, Nodes
from tests.support.processes import command_of, group
from tests.support.tiny_server import tiny_server

THREADS = 4
CALL_LIMIT_S = 90.0  # a call that takes longer hangs
SETTLE_LIMIT_S = 60.0
SUCCESS_LIMIT_S = 30.0
QUICK: dict[str, Any] = {"prompt": "a star", "size": "256x256", "steps": 2, "model": "alpha-image-2-count"}
TARGETS = {"API": 2, "image worker": 3, "chat worker": 2, "decoder": 5, "database": 1}  # and how often of each
NODES_TARGETS = {**TARGETS, "switch": 2}
CLUSTER_TARGETS = {**TARGETS, "API": 3, "both APIs": 1, "store": 2}
COMMANDS = {"image worker": b"\0image\0", "chat worker": b"\0chat\0", "decoder": b"decoding.worker"}
GIVEN_UP_S = 12.0  # more than it takes until the other server has given up one that is dead, by the lease below
SETTINGS = {"preload": "false", "result_grace_s": "5", "lease_s": "5", "max_running_per_key": "64"}


@dataclass
class Chaos:
    """The traffic, the kills, and what went wrong. Each call and each retry goes to any of the servers."""

    servers: Sequence[Server]
    cluster: Cluster | None = None
    nodes: Nodes | None = None
    store: ObjectStore | None = None
    kills: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    recounts: int = 0
    delivered: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)
    _keys: list[str] = field(default_factory=list)
    _intact: dict[str, bytes] = field(default_factory=dict)  # images that were read already

    def run(self, kills: int, seed: int = 0, report: Callable[[str], None] = lambda _: None) -> None:
        """Kill this often under traffic, then let everything settle, and recount."""
        rng = random.Random(seed)
        self._keys = [self.server.key, self.server.darkroom("keys", "create", "poor", "--budget", "3").stdout.strip()]
        due = [target for target in self._targets if target != "database" or self._database is not None]
        rng.shuffle(due)  # each once, then any
        callers = [threading.Thread(target=self._call_until_the_end, args=(seed + i,)) for i in range(THREADS)]
        for caller in callers:
            caller.start()
        try:
            while sum(self.kills.values()) < kills:
                self._wait_for_success()
                time.sleep(rng.uniform(0, 1))  # whatever is under way then is what the kill hits
                is_due = bool(due)
                target = due.pop(0) if is_due else rng.choices(list(self._targets), list(self._targets.values()))[0]
                if self._kill_one(target, rng):
                    self.kills[target] += 1
                elif is_due:
                    due.append(target)
                report(f"{sum(self.kills.values())} kills, {len(self.problems)} problems; {dict(self.outcomes)}")
        finally:
            self._ended.set()
            for caller in callers:
                caller.join(2 * CALL_LIMIT_S)
                self.problems += ["a call hangs"] if caller.is_alive() else []
        self._settle()

    def _wait_for_success(self) -> None:
        """Until one more image has been answered, for what is never charged can't be charged wrongly."""
        before, until = len(self.delivered), time.monotonic() + SUCCESS_LIMIT_S
        while len(self.delivered) == before and time.monotonic() < until:
            time.sleep(0.05)

    @property
    def server(self) -> Server:
        """The one whose home has the first key."""
        return next(server for server in self.servers if (server.home / "dev-key").exists())

    @property
    def _targets(self) -> dict[str, int]:
        if self.store is not None:
            return CLUSTER_TARGETS
        return NODES_TARGETS if self.nodes is not None else TARGETS

    @property
    def _database(self) -> Cluster | None:
        return self.nodes.primary if self.nodes is not None else self.cluster

    def _kill_one(self, target: str, rng: random.Random) -> bool:
        """False if there is none at this moment. What is not restarted by its server is started again."""
        if target in {"API", "both APIs"}:
            killed = self.servers if target == "both APIs" else [rng.choice(self.servers)]
            for server in killed:
                server.kill()
            if len(self.servers) > 1 and rng.random() < 0.25:
                time.sleep(GIVEN_UP_S)
            for server in killed:
                server.start(wait=False)
            for server in killed:
                server.wait_ready()
            self._recount()
        elif target == "database" and (database := self._database) is not None:
            database.kill()
            time.sleep(rng.uniform(0, 2))
            database.start()
            self._recount()
        elif target == "switch" and self.nodes is not None:
            self.nodes.demote()
            time.sleep(rng.uniform(0, 2))
            self.nodes.promote()
            self._recount()
        elif target == "store" and self.store is not None:
            self.store.cut_off()
            time.sleep(rng.uniform(0, 2))
            self.store.connect()
        else:
            return self._kill_child(target, rng.choice(self.servers))
        return True

    def _kill_child(self, target: str, server: Server) -> bool:
        assert server.process
        for pid in group(server.process.pid)[1:]:
            if target in COMMANDS and COMMANDS[target] in command_of(pid):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def _recount(self) -> list[str]:
        """Calls go on meanwhile: what they have got so far is read before the books, what may be theirs afterwards."""
        delivered = set(self.delivered)
        books = read_books(self._database_url)
        self.recounts += 1
        found = recount(books, self._read, delivered, self.delivered | self.unknown)
        new = [line for line in found if line not in self.problems]
        self.problems += new
        print(*new, sep="\n", end="\n" if new else "", file=sys.stderr)
        return unsettled(books)

    def _read(self, name: str) -> bytes | None:
        """An image; one that was there is read again at the end alone."""
        if name not in self._intact:
            read = self.store.read if self.store is not None else from_folder(self.server.home / "results")
            content = read(name)
            if content is None:
                return None
            self._intact[name] = content
        return self._intact[name]

    def _settle(self) -> None:
        """Nothing runs any more: what is left must go by itself."""
        self._intact.clear()
        until = time.monotonic() + SETTLE_LIMIT_S
        while (left := self._recount()) and time.monotonic() < until:
            time.sleep(1)
        self.problems += left
        check = self.server.darkroom("ledger", "--check")
        self.problems += [f"ledger --check: {check.stderr}"] if check.returncode else []

    @property
    def _database_url(self) -> URL:
        return Settings(home=self.server.home, database=self.server.settings.get("database")).database_url

    def _call_until_the_end(self, seed: int) -> None:
        rng = random.Random(seed)
        calls = (self._image, self._image, self._image, self._edit, self._stream, self._chat, self._response)
        while not self._ended.is_set():
            call, (key,) = rng.choice(calls), rng.choices(self._keys, (7, 1))
            try:
                with httpx.Client(timeout=CALL_LIMIT_S, trust_env=False) as client:
                    client.headers["Authorization"] = f"Bearer {key}"
                    status = call(client, rng)
                self.outcomes[f"{call.__name__[1:]} {status}"] += 1
            except httpx.TimeoutException:
                self.problems.append(f"{call.__name__[1:]}: no answer within {CALL_LIMIT_S:g} s")
            except httpx.HTTPError:
                self.outcomes[f"{call.__name__[1:]} cut off"] += 1
                time.sleep(0.2)

    def _url(self, path: str, rng: random.Random) -> str:
        return rng.choice(self.servers).base + path

    def _keyed(self, client: httpx.Client, path: str, rng: random.Random, **request: Any) -> int:
        """One call, and half of the time its retries until it has an answer."""
        name = f"chaos-{uuid.uuid4().hex}"
        self.unknown.add(name)
        for attempt in range(rng.choice((1, 8))):
            try:
                answer = client.post(self._url(path, rng), headers={"Idempotency-Key": name}, **request)
            except (httpx.HTTPError, OSError):
                time.sleep(1)
                continue
            streamed = answer.headers["content-type"].startswith("text/event-stream")
            if answer.status_code == 200 and (not streamed or b".completed" in answer.content):
                self.delivered.add(name)
            elif attempt == 0 and (not streamed or b'"error"' in answer.content):
                self.unknown.discard(name)  # it failed, and no earlier attempt can be charged
            return answer.status_code
        raise httpx.ReadError("cut off")

    def _image(self, client: httpx.Client, rng: random.Random) -> int:
        return self._keyed(client, "/v1/images/generations", rng, json={**QUICK, "n": rng.choice((1, 1, 3))})

    def _edit(self, client: httpx.Client, rng: random.Random) -> int:
        files = {"image": ("a.png", _image(rng), "image/png")}
        return self._keyed(client, "/v1/images/edits", rng, data={"prompt": "at night", "steps": "2"}, files=files)

    def _stream(self, client: httpx.Client, rng: random.Random) -> int:
        uri = f"data:image/png;base64,{base64.b64encode(_image(rng)).decode()}"
        return self._keyed(client, "/v1/images/generations", rng, json={**QUICK, "stream": True, "image": [uri]})

    def _chat(self, client: httpx.Client, rng: random.Random) -> int:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, "stream": rng.random() < 0.5}
        return client.post(self._url("/v1/chat/completions", rng), json=body).status_code

    def _response(self, client: httpx.Client, rng: random.Random) -> int:
        tools = [{"type": "image_generation", "size": "256x256", "quality": "low"}]
        body = {"input": "Draw", "tools": tools, "tool_choice": {"type": "image_generation"}, "max_output_tokens": 64}
        return client.post(self._url("/v1/responses", rng), json={**body, "background": rng.random() < 0.3}).status_code


def _image(rng: random.Random) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (512, 512), (rng.randrange(256), 0, 0)).save(file, "PNG")
    return file.getvalue()


@contextlib.contextmanager
def one_server(folder: Path, program: str, nodes: Nodes | None) -> Iterator[Chaos]:
    """On SQLite, or on two nodes of PostgreSQL."""
    url = {"database": nodes.new("template0")} if nodes else {}
    server = tiny_server(folder, program, **SETTINGS, **url).start()
    try:
        yield Chaos([server], nodes=nodes)
    finally:
        server.kill()


@contextlib.contextmanager
def two_servers(folder: Path, program: str) -> Iterator[Chaos]:
    """On one PostgreSQL and one S3 server."""
    with object_store() as store, pytest.MonkeyPatch.context() as environment:
        store.connect()
        for name, value in store.environment.items():
            environment.setenv(name, value)
        with two_gateways(folder, program, **SETTINGS, storage=store.url, retry_grace_s="15") as pair:
            yield Chaos(pair.servers, pair.cluster, store=store)


def main() -> None:
    """Kill as often as the first argument says, with `real` or `plain` workers. Exits with 1 if there are problems."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    program = "darkroom" if "real" in sys.argv[2:] else "benchmarks.plain_server"
    console = Console(highlight=False, soft_wrap=True)
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as home, Nodes.temporary() as nodes:
        folder = Path(home)
        runs = {
            "SQLite": lambda: one_server(folder / "sqlite", program, None),
            "PostgreSQL": lambda: one_server(folder / "postgresql", program, nodes),
            "two servers": lambda: two_servers(folder / "two", program),
        }
        chosen = {name: run for name, run in runs.items() if name in sys.argv[2:]} or runs
        end = "\r" if console.is_terminal else "\n"
        for index, (name, run) in enumerate(chosen.items()):
            share = kills // len(chosen) + (index < kills % len(chosen))
            with run() as chaos:
                chaos.run(share, report=lambda line: console.print(line, end=end))
            console.print(f"{name}: {sum(chaos.kills.values())} kills ({dict(chaos.kills)}), {chaos.recounts} recounts")
            console.print(f"  {sum(chaos.outcomes.values())} calls: {dict(sorted(chaos.outcomes.items()))}")
            console.print("\n".join(chaos.problems) or "  No problems: no wrong charge, nothing left.")
            problems += chaos.problems
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
