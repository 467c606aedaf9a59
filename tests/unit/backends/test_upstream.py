"""Another OpenAI-compatible server, in all its moods: what is passed on, and what is said when nothing can be."""

import http.server
import json
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from structlog.testing import capture_logs

from pipelines.catalog.chat import Upstream
from server.accounts.db import Database
from server.accounts.keys import Key
from server.backends.upstream import Answer, Upstreams
from server.errors import ApiError, EngineFailure, Overloaded, StartError, TimedOut
from server.flows.chat.run import Tally
from server.flows.chat.upstream import ask_upstream, stream_upstream
from server.services import Services
from server.telemetry.metrics import Metrics

KEY = Key("key_1", "one", "abcd", frozenset({"chat"}), None, datetime.now(UTC), None, None, None, None, keepalive=False)
ERROR = {"error": {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
CHUNKS = [{"choices": [{"delta": {"content": word}}]} for word in ("a", "b")]


def frames(*chunks: Any, done: bool = True) -> bytes:
    told = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return (": hello\n\n" + told + ("data: [DONE]\n\n" if done else "")).encode()


MOODS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "good": (200, {}, json.dumps({"id": "chatcmpl-1", "choices": []}).encode()),
    "busy": (429, {"Retry-After": "7", "x-secret": "no"}, json.dumps(ERROR).encode()),
    "strict": (401, {}, json.dumps(ERROR).encode()),
    "broken": (502, {"Content-Type": "text/html"}, b"<h1>Bad gateway</h1>"),
    "odd": (422, {}, json.dumps({"detail": [{"loc": ["body", "n"]}]}).encode()),
    "terse": (500, {}, json.dumps({"error": "no slot"}).encode()),
    "list": (200, {}, b"[]"),
    "stream": (200, {"Content-Type": "text/event-stream"}, frames(*CHUNKS)),
    "careful": (200, {"Content-Type": "text/event-stream"}, frames(*({"error": None, **chunk} for chunk in CHUNKS))),
    "failing": (200, {"Content-Type": "text/event-stream"}, frames(CHUNKS[0], {"error": {"message": "no memory"}})),
    "used": (200, {}, json.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}).encode()),
    "boasting": (200, {}, json.dumps({"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 2}}).encode()),
    "cut": (200, {"Content-Type": "text/event-stream"}, frames(*CHUNKS, done=False)),
    "garbled": (200, {"Content-Type": "text/event-stream"}, b"data: {oops\n\n"),
}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers in the mood that the model's name asks for."""

    seen: ClassVar[list[tuple[str, str | None, dict[str, Any]]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append((self.path, self.headers.get("authorization"), body))
        status, headers, content = MOODS[body["model"]]
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def base() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture
async def upstreams() -> AsyncIterator[Upstreams]:
    made = Upstreams([Upstream("http://x/v1", "x", "THEIR_KEY")], {"THEIR_KEY": "sk-theirs"}, 10)
    yield made
    await made.close()


async def ask(upstreams: Upstreams, base: str, mood: str) -> Answer:
    return await upstreams.ask(Upstream(base, mood, None), {"model": mood})


async def chunks_of(upstreams: Upstreams, base: str, mood: str) -> list[Any]:
    async with upstreams.stream(Upstream(base, mood, None), {"model": mood, "stream": True}) as answer:
        return [answer] if isinstance(answer, Answer) else [chunk async for chunk in answer]


async def test_answers_and_errors_are_passed_on_with_when_to_retry(upstreams: Upstreams, base: str) -> None:
    assert (await ask(upstreams, base, "good")).body["id"] == "chatcmpl-1"
    busy = await ask(upstreams, base, "busy")
    assert (busy.status, busy.body, dict(busy.headers)) == (429, ERROR, {"retry-after": "7"})
    assert await chunks_of(upstreams, base, "busy") == [busy]


@pytest.mark.parametrize(
    ("mood", "message", "kind"),
    [("odd", '[{"loc": ["body", "n"]}]', "invalid_request_error"), ("terse", "no slot", "server_error")],
)
async def test_errors_of_any_shape_become_openais(
    upstreams: Upstreams, base: str, mood: str, message: str, kind: str
) -> None:
    answer = await ask(upstreams, base, mood)
    assert answer.body == {"error": {"message": message, "type": kind, "param": None, "code": None}}


async def test_the_key_is_the_operators(upstreams: Upstreams, base: str) -> None:
    await upstreams.ask(Upstream(base, "good", "THEIR_KEY"), {"model": "good"})
    await ask(upstreams, base, "good")
    assert [(path, key) for path, key, _ in Handler.seen[-2:]] == [
        ("/v1/chat/completions", "Bearer sk-theirs"),
        ("/v1/chat/completions", None),
    ]


def test_a_key_that_is_not_set_is_said_at_start() -> None:
    with pytest.raises(StartError, match="THEIR_KEY"):
        Upstreams([Upstream("http://x/v1", "x", "THEIR_KEY")], {}, 10)


async def test_a_changed_catalog_may_bring_a_key_that_is_set(upstreams: Upstreams, base: str) -> None:
    with pytest.raises(StartError, match="OTHER_KEY"):
        upstreams.take([Upstream(base, "good", "OTHER_KEY")])
    later = Upstreams([], {"OTHER_KEY": "sk-other"}, 10)
    later.take([Upstream(base, "good", "OTHER_KEY")])
    await later.ask(Upstream(base, "good", "OTHER_KEY"), {"model": "good"})
    await later.close()
    assert Handler.seen[-1][1] == "Bearer sk-other"


async def test_a_stream_is_its_chunks(upstreams: Upstreams, base: str) -> None:
    assert await chunks_of(upstreams, base, "stream") == CHUNKS


@pytest.mark.parametrize(
    ("mood", "code"),
    [("strict", "upstream_refused"), ("broken", "upstream_failed"), ("list", "upstream_failed")],
)
async def test_what_can_not_be_passed_on_is_a_500(upstreams: Upstreams, base: str, mood: str, code: str) -> None:
    for attempt in (ask, chunks_of):
        with pytest.raises(EngineFailure) as raised:
            await attempt(upstreams, base, mood)
        assert raised.value.code == code


@pytest.mark.parametrize("mood", ["cut", "garbled"])
async def test_a_stream_that_breaks_is_an_error(upstreams: Upstreams, base: str, mood: str) -> None:
    with pytest.raises(EngineFailure) as raised:
        await chunks_of(upstreams, base, mood)
    assert raised.value.code == "upstream_failed"


async def test_nobody_there_is_a_503_and_silence_a_504(upstreams: Upstreams) -> None:
    with pytest.raises(Overloaded) as refused:
        await ask(upstreams, "http://127.0.0.1:9/v1", "good")
    assert refused.value.headers["Retry-After"] == "5"
    hasty = Upstreams([], {}, 0.05)
    silent = http.server.HTTPServer(("127.0.0.1", 0), Handler)  # it listens, and nobody serves
    caught: ApiError | None = None
    try:
        await ask(hasty, f"http://127.0.0.1:{silent.server_port}/v1", "good")
    except TimedOut as error:
        caught = error
    silent.server_close()
    await hasty.close()
    assert caught is not None


@pytest.fixture
def services(upstreams: Upstreams, tmp_path: Path) -> Services:
    """Their database has no tables, so that nothing can be counted in it."""
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    return cast(Services, SimpleNamespace(upstreams=upstreams, metrics=Metrics(), database=database))


async def streamed(services: Services, base: str, mood: str) -> list[Any]:
    return [item async for item in stream_upstream(services, Upstream(base, mood, None), {}, Tally(KEY, mood))]


def outcomes(services: Services) -> dict[tuple[str, str], float]:
    found = [sample for metric in services.metrics.chats.collect() for sample in metric.samples]
    return {(s.labels["model"], s.labels["outcome"]): s.value for s in found if s.name.endswith("_total")}


async def test_an_answer_stands_though_its_tokens_could_not_be_counted(services: Services, base: str) -> None:
    for mood in ("used", "boasting"):
        with capture_logs() as logs:
            answer = await ask_upstream(services, Upstream(base, mood, None), {}, Tally(KEY, mood))
        assert answer.status == 200
        assert [entry["event"] for entry in logs] == ["tokens were not counted"]


async def test_an_error_in_a_stream_is_raised_unless_it_is_none(services: Services, base: str) -> None:
    assert len(await streamed(services, base, "careful")) == len(CHUNKS)
    with pytest.raises(EngineFailure, match="no memory"):
        await streamed(services, base, "failing")


async def test_every_outcome_is_counted(services: Services, base: str) -> None:
    for mood in ("good", "busy"):
        await ask_upstream(services, Upstream(base, mood, None), {}, Tally(KEY, mood))
    with pytest.raises(EngineFailure):
        await ask_upstream(services, Upstream(base, "broken", None), {}, Tally(KEY, "broken"))
    await streamed(services, base, "stream")
    told = {("good", "finished"): 1, ("busy", "429"): 1, ("broken", "cut"): 1, ("stream", "finished"): 1}
    assert outcomes(services) == told
