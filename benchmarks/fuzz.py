"""`make fuzz`: mutated requests to every route of /openapi.json.

REQUESTS of them, a few at a time: the examples of each route, with values, types, headers, lengths and bytes changed.
No answer may be a 5xx, but for a 503 that says when to try again, no connection may be reset, no request may hang, and
the API server's memory must not grow by more than MAX_GROWTH_MIB after the first fifth of the requests.
"""

import copy
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from tests.support.harness import CALL_LIMIT_S, Server
from tests.support.openapi import operations
from tests.support.postgresql import Cluster
from tests.support.tiny_server import tiny_server

THREADS = 4
MAX_GROWTH_MIB = 100
SETTINGS = {"preload": "false", "max_queue": "16"}
MODELS = ("alpha-image-2-count", "starter-chat", "gamma", "")
ENDLESS = ("/admin/events",)  # what operators watch
COSTLY = {
    "n": 2,
    "steps": 3,
    "max_tokens": 16,
    "max_completion_tokens": 16,
    "max_output_tokens": 16,
}  # at most, if valid
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, "", " ", "\x00", "a" * 70_000,
    "\u202e\u0301\U0001f600", "1:1", "256x256", "9999999x1", "../../etc/passwd", "http://127.0.0.1:1/a.png",
    "data:image/png;base64,AAAA", "data:,", [], {}, [[]], [None] * 50, {"a": {"b": {"c": []}}}, {"": ""}, "auto",
)  # fmt: skip
HEADERS = (
    ("Idempotency-Key", "\u00e9" * 10), ("Idempotency-Key", "k" * 300), ("X-Keepalive", "1"), ("X-Keepalive", "x"),
    ("x-stainless-retry-count", "1"), ("x-stainless-retry-count", "-1"), ("Range", "bytes=9-1"), ("Expect", "nothing"),
    ("Content-Type", "text/plain"), ("Content-Type", "multipart/form-data"), ("Content-Type", "a/b; charset=utf-99"),
    ("Content-Encoding", "gzip"), ("Accept", "text/event-stream"), ("Origin", "null"), ("Cookie", "darkroom-session=x"),
    ("Authorization", "Bearer"), ("Authorization", "Bearer \u00e9"), ("Host", "evil.example"), ("X-Forwarded-For", "x"),
)  # fmt: skip


@dataclass
class Fuzz:
    """The requests, their answers, and what went wrong."""

    server: Server
    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    memory_mib: list[int] = field(default_factory=list)  # after each fiftieth of the requests
    longest_s: float = 0.0
    _local: threading.local = field(default_factory=threading.local)

    def run(self, requests: int, seed: int = 0, report: Callable[[str], None] = lambda _: None) -> None:
        """Send so many requests, and judge the answers."""
        with self.server.http() as client:
            document = client.get("/openapi.json").json()
        routes = [_Route.of(method, path, operation) for method, path, operation in operations(document)]
        pieces = [
            range(start, min(start + requests // 50 + 1, requests)) for start in range(0, requests, requests // 50 + 1)
        ]
        with ThreadPoolExecutor(THREADS) as pool:
            for piece in pieces:
                list(pool.map(lambda number: self._send(routes, random.Random(f"{seed}-{number}")), piece))
                self.memory_mib.append(self.server.loaded_mib)
                report(f"{piece.stop} requests, {self.memory_mib[-1]} MiB, {dict(sorted(self.statuses.items()))}")
        settled = self.memory_mib[len(self.memory_mib) // 5]
        if self.growth_mib > MAX_GROWTH_MIB:
            self.problems.append(f"memory grew from {settled} to {self.memory_mib[-1]} MiB")
        with self.server.http() as client:
            self.problems += (
                [] if client.get("/v1/models").status_code == 200 else ["the server does not answer any more"]
            )

    @property
    def growth_mib(self) -> int:
        return self.memory_mib[-1] - self.memory_mib[len(self.memory_mib) // 5]

    def _send(self, routes: "list[_Route]", rng: random.Random) -> None:
        request = rng.choice(routes).request(rng, self.server)
        began = time.monotonic()
        shown = f"{request['method']} {request['url'][:100]} {str(request.get('content'))[:300]} {request['headers']}"
        try:
            with self._client.stream(**request) as answer:
                self._read(answer, began)
            self.statuses[answer.status_code] += 1
            is_told_when = answer.status_code == 503 and "retry-after" in answer.headers  # such as with a full queue
            if answer.status_code >= 500 and not is_told_when:
                self.problems.append(f"{answer.status_code}: {shown}")
        except httpx.TimeoutException:
            self.problems.append(f"no answer within {CALL_LIMIT_S:g} s: {shown}")
        except httpx.TransportError as error:
            self.problems.append(f"{error!r}: {shown}")
        except UnicodeEncodeError:
            self.statuses[0] += 1  # a header that no client can send
        self.longest_s = max(self.longest_s, time.monotonic() - began)

    def _read(self, answer: httpx.Response, began: float) -> None:
        """The whole body, or the beginning of a stream that has no end. Raises ReadTimeout after CALL_LIMIT_S: the
        client's own limit is for each read, and streams are kept alive."""
        for _ in answer.iter_raw():
            if answer.request.url.path in ENDLESS:
                return
            if time.monotonic() - began > CALL_LIMIT_S:
                raise httpx.ReadTimeout("still no end")

    @property
    def _client(self) -> httpx.Client:
        """One a thread, so that connections are used again after every kind of answer."""
        if not hasattr(self._local, "client"):
            self._local.client = httpx.Client(base_url=self.server.base, timeout=CALL_LIMIT_S, trust_env=False)
        client: httpx.Client = self._local.client
        return client


@dataclass(frozen=True)
class _Route:
    """A route, and the bodies that it has as examples."""

    method: str
    path: str
    bodies: list[Any]
    is_form: bool
    for_operator: bool

    @classmethod
    def of(cls, method: str, path: str, operation: dict[str, Any]) -> "_Route":
        content = operation.get("requestBody", {}).get("content", {})
        examples = [each["value"] for media in content.values() for each in media.get("examples", {}).values()]
        return cls(method, path, examples, "multipart/form-data" in content, {"admin_key": []} in operation["security"])

    def request(self, rng: random.Random, server: Server) -> dict[str, Any]:
        """A mutated request, as httpx takes it."""
        method = self.method if rng.random() < 0.95 else rng.choice(("GET", "POST", "PUT", "DELETE", "OPTIONS", "BREW"))
        parts = [_path_value(rng) if part.startswith("{") else part for part in self.path.split("/")]
        query = (
            f"?{rng.choice(('stream', 'after', 'limit', 'order', 'x'))}={_path_value(rng)}"
            if rng.random() < 0.2
            else ""
        )
        key = server.admin_key if self.for_operator else server.key
        headers = {"Authorization": f"Bearer {key}"}
        content, kind = self._content(rng)
        if content is not None:
            headers["Content-Type"] = kind
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            name, value = rng.choice(HEADERS)
            headers[name] = value
        encoded = {name: value.encode("utf-8") for name, value in headers.items()}
        return {"method": method, "url": "/".join(parts) + query, "content": content, "headers": encoded}

    def _content(self, rng: random.Random) -> tuple[bytes | None, str]:
        if not self.bodies:
            return (b"{}", "application/json") if rng.random() < 0.2 else (None, "")
        body = _mutate(copy.deepcopy(rng.choice(self.bodies)), rng)
        raw, kind = _form(body, rng) if self.is_form else (_json(body), "application/json")
        if rng.random() < 0.15:
            raw = _damage(raw, rng)
        return raw, kind


def _mutate(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The body with up to three values replaced, anywhere in it; numbers that cost time are kept small."""
    if rng.random() < 0.9:
        body["model"] = rng.choice(MODELS[:2]) if rng.random() < 0.9 else rng.choice(MODELS)
    for _ in range(rng.randrange(4)):
        target: Any = body
        while True:
            places = list(target) if isinstance(target, dict) else list(range(len(target)))
            if not places:
                break
            place = rng.choice(places)
            inner = target[place]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
                target = inner
                continue
            if rng.random() < 0.15 and isinstance(target, dict):
                del target[place]
                target[rng.choice(("x", "", "n", "size", "stream", "image"))] = copy.deepcopy(rng.choice(VALUES))
            else:
                target[place] = copy.deepcopy(rng.choice(VALUES))
            break
    for name, most in COSTLY.items():
        if isinstance(value := body.get(name), int | float) and most < value < 300:
            body[name] = most
    return body


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, allow_nan=True).encode()


def _form(body: dict[str, Any], rng: random.Random) -> tuple[bytes, str]:
    boundary = rng.choice(("b", "b" * 70, "x y"))
    parts = []
    for name, value in body.items():
        for each in value if isinstance(value, list) else [value]:
            is_file = name == "image" and rng.random() < 0.9
            disposition = f'form-data; name="{name}"' + ('; filename="a.png"' if is_file else "")
            parts.append(
                f"--{boundary}\r\nContent-Disposition: {disposition}\r\n\r\n{each}\r\n".encode("utf-8", "replace")
            )
    return b"".join(parts) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def _damage(raw: bytes, rng: random.Random) -> bytes:
    """Cut off, doubled, with other bytes, nested too deeply, or much longer."""
    place = rng.randrange(len(raw) + 1)
    kinds = (
        raw[:place], raw + raw, raw[:place] + rng.randbytes(8) + raw[place:], b"[" * 5000, b"\xff\xfe" + raw, b"",
        b'{"prompt": "' + b"x" * rng.randrange(3_000_000) + b'"}', b'{"a": [' + b"[]," * 200_000 + b"[]]}",
    )  # fmt: skip
    return rng.choice(kinds)


def _path_value(rng: random.Random) -> str:
    return rng.choice(
        ("0", "a" * 3000, "9" * 30, "%00", "..%2f..", "%F0%9F%98%80", "resp_0", "img_0", "starter-chat", "-1", "a.png")
    )


def main() -> None:
    """As many requests as the first argument says, half on SQLite, half on PostgreSQL. Exits with 1 if there are
    problems."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    console = Console(highlight=False, soft_wrap=True, markup=False)
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder, Cluster.temporary() as cluster:
        os.environ["PATH"] = f"{cluster.binaries}{os.pathsep}{os.environ['PATH']}"  # backups need pg_dump
        for seed, (name, database) in enumerate((("SQLite", None), ("PostgreSQL", cluster))):
            url = {"database": database.new("template0")} if database else {}
            (Path(folder) / name).mkdir()
            server = tiny_server(Path(folder) / name, **SETTINGS, **url).start()
            fuzz = Fuzz(server)
            try:
                fuzz.run(requests // 2, seed, report=console.print)
            finally:
                server.kill()
            console.print(f"{name}: {sum(fuzz.statuses.values())} requests: {dict(sorted(fuzz.statuses.items()))}")
            memory = f"memory +{fuzz.growth_mib} MiB, at most {max(fuzz.memory_mib)}"
            console.print(f"  {memory}; longest answer {fuzz.longest_s:.1f} s")
            console.print("\n".join(fuzz.problems) or "  No problems.")
            problems += fuzz.problems
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
