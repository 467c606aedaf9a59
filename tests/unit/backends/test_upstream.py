"""Another OpenAI-compatible server that behaves well or badly: what is forwarded, and which errors are raised."""

import gzip
import http.server
import json
import math
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from pipelines.protocol.chat import ChatEvent, ChatJob, CountJob
from pipelines.protocol.upstream import Upstream
from server.accounts.db import Database
from server.accounts.keys import Key
from server.backends.engine_host import EngineHost, HostLimits
from server.backends.upstream import UpstreamClient, UpstreamResponse
from server.catalog.chat import ChatModel
from server.errors import ApiError, ContextExceeded, EngineFailure, Overloaded, StartError, TimedOut
from server.flows.chat.run import ChatRunner, UsageContext
from server.flows.chat.source import ChatParts
from server.flows.chat.upstream_source import UpstreamSource
from server.state.tasks import BackgroundTasks
from server.telemetry.metrics import Metrics
from server.telemetry.tracing import Tracing

KEY = Key("key_1", "one", "abcd", frozenset({"chat"}), None, datetime.now(UTC), None, None, None, None, keepalive=False)
ERROR = {"error": {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
SECOND = {"choices": [{"index": 1, "delta": {"content": "a"}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
TOO_LONG = {
    "object": "error",
    "message": "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
    "type": "BadRequestError",
    "param": None,
    "code": 400,
}  # as SGLang says it
ABORTED = {"choices": [{"delta": {}, "finish_reason": "abort"}]}
NO_NUMBERS = [{"delta": {}, "logprobs": [{"logprob": -math.inf, "top": [math.nan]}], "finish_reason": "stop"}]
NUMBERS = [{"delta": {}, "logprobs": [{"logprob": -9999.0, "top": [None]}], "finish_reason": "stop"}]
CHUNKS = [{"choices": [{"delta": {"content": word}}]} for word in ("a", "b")]


def frames(*chunks: Any, done: bool = True) -> bytes:
    data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return (": hello\n\n" + data + ("data: [DONE]\n\n" if done else "")).encode()


BEHAVIOURS: dict[str, tuple[int, dict[str, Any], bytes]] = {
    "good": (200, {}, json.dumps({"id": "chatcmpl-1", "choices": []}).encode()),
    "busy": (429, {"Retry-After": "7", "x-secret": "no"}, json.dumps(ERROR).encode()),
    "unauthorized": (401, {}, json.dumps(ERROR).encode()),
    "broken": (502, {"Content-Type": "text/html"}, b"<h1>Bad gateway</h1>"),
    "page": (
        502,
        {"Content-Type": "text/html"},
        b"<html>\r\n<head><style>p {}</style><title>502 Bad Gateway</title></head><body>nginx</body></html>",
    ),
    "html429": (429, {"Content-Type": "text/html", "Retry-After": "7"}, b"<html>Too Many Requests</html>"),
    "html413": (413, {"Content-Type": "text/html"}, b"<html>413 Request Entity Too Large</html>"),
    "text404": (404, {"Content-Type": "text/plain"}, b"404 page not found\n"),
    "empty504": (504, {}, b""),
    "fast503": (
        503,
        {},
        json.dumps({"error": {"message": "loading", "type": "unavailable_error", "code": 503, "param": 3}}).encode(),
    ),
    "moved": (302, {"Location": "http://elsewhere/"}, b"{}"),
    "fastapi error": (422, {}, json.dumps({"detail": [{"loc": ["body", "n"]}]}).encode()),
    "error text": (500, {}, json.dumps({"error": "no slot"}).encode()),
    "json list": (200, {}, b"[]"),
    "stream": (200, {"Content-Type": "text/event-stream"}, frames(*CHUNKS)),
    "null errors": (
        200,
        {"Content-Type": "text/event-stream"},
        frames(*({"error": None, **chunk} for chunk in CHUNKS)),
    ),
    "failing": (200, {"Content-Type": "text/event-stream"}, frames(CHUNKS[0], {"error": {"message": "no memory"}})),
    "with usage": (
        200,
        {},
        json.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}).encode(),
    ),
    "invalid usage": (
        200,
        {},
        json.dumps({"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 2}}).encode(),
    ),
    "cut": (200, {"Content-Type": "text/event-stream"}, frames(*CHUNKS, done=False)),
    "no done": (200, {"Content-Type": "text/event-stream"}, frames(*CHUNKS, END, USAGE, done=False)),
    "half done": (200, {"Content-Type": "text/event-stream"}, frames(SECOND, END, done=False)),
    "cut after its end": (
        200,
        {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", "Content-Length": None},
        b"%x\r\n%s\r\n" % (len(frames(*CHUNKS, END, done=False)), frames(*CHUNKS, END, done=False)),
    ),
    "refused stream": (
        200,
        {"Content-Type": "text/event-stream"},
        frames({"error": {"message": "too many", "code": "429"}}),
    ),
    "error object": (200, {"Content-Type": "text/event-stream"}, frames(TOO_LONG)),
    "error object later": (200, {"Content-Type": "text/event-stream"}, frames(CHUNKS[0], TOO_LONG)),
    "error body": (200, {}, json.dumps(TOO_LONG).encode()),
    "detail": (200, {}, json.dumps({"detail": TOO_LONG["message"]}).encode()),
    "aborted": (200, {"Content-Type": "text/event-stream"}, frames(CHUNKS[0], ABORTED)),
    "aborted whole": (
        200,
        {},
        json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "error"}]}).encode(),
    ),
    "no choice": (200, {"Content-Type": "text/event-stream"}, frames(USAGE)),
    "no stream": (200, {}, json.dumps({"id": "c", "choices": [{"message": {"content": "a"}}]}).encode()),
    "garbled": (200, {"Content-Type": "text/event-stream"}, b"data: {oops\n\n"),
    "long answer": (200, {}, json.dumps({"choices": [{"message": {"content": "a" * 3 * 2**20}}]}).encode()),
    "long error": (500, {}, json.dumps({"error": "a" * 3 * 2**20}).encode()),
    "compressed": (200, {"Content-Encoding": "gzip"}, gzip.compress(b" " * 2**20)),
    "compressed stream": (200, {"Content-Type": "text/event-stream", "Content-Encoding": "br"}, b"a"),
    "unread page": (502, {"Content-Type": "text/html"}, b"<p>Lost</p>" + b"<script <!--" * 80_000),
    "long message": (400, {}, json.dumps({"error": {"message": "a" * 2**19}}).encode()),
    "no words": (429, {"Retry-After": "7\x01", "x-should-retry": "\u00e9"}, json.dumps(ERROR).encode()),
    "nothing": (200, {"Content-Type": "text/event-stream"}, frames({"choices": []})),
    "no numbers": (200, {"Content-Type": "text/event-stream"}, frames({"choices": NO_NUMBERS})),
    "no numbers at all": (200, {}, json.dumps({"choices": NO_NUMBERS}).encode()),
    "unheard usage": (
        200,
        {},
        json.dumps({"choices": [], "usage": {"prompt_tokens": 10**30, "completion_tokens": -2}}).encode(),
    ),
    "long stream": (200, {"Content-Type": "text/event-stream"}, frames(*CHUNKS * 12_000)),
    "long line": (200, {"Content-Type": "text/event-stream"}, b"data: {" + b"a" * 3 * 2**20),
    "many lines": (200, {"Content-Type": "text/event-stream"}, b'data: {"a": {}\n' + b'data: , "a": {}\n' * 2**15),
}


class Handler(http.server.BaseHTTPRequestHandler):
    """Behaves as the model's name says."""

    seen: ClassVar[list[tuple[str, str | None, dict[str, Any]]]] = []
    traces: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append((self.path, self.headers.get("authorization"), body))
        self.traces.append(self.headers.get("traceparent"))
        status, headers, content = BEHAVIOURS[body["model"]]
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
            if value is not None:
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
async def upstreams() -> AsyncIterator[UpstreamClient]:
    client = UpstreamClient([Upstream("http://x/v1", "x", "UPSTREAM_KEY")], {"UPSTREAM_KEY": "sk-upstream"}, 10)
    yield client
    await client.close()


async def request(upstreams: UpstreamClient, base: str, behaviour: str) -> UpstreamResponse:
    return await upstreams.complete(Upstream(base, behaviour, None), {"model": behaviour})


async def chunks_of(upstreams: UpstreamClient, base: str, behaviour: str) -> list[Any]:
    async with upstreams.stream(Upstream(base, behaviour, None), {"model": behaviour, "stream": True}) as answer:
        return [answer] if isinstance(answer, UpstreamResponse) else [chunk async for chunk in answer]


async def test_answers_and_errors_are_forwarded_with_their_retry_headers(upstreams: UpstreamClient, base: str) -> None:
    assert (await request(upstreams, base, "good")).body["id"] == "chatcmpl-1"
    busy = await request(upstreams, base, "busy")
    assert (busy.status, busy.body, dict(busy.headers)) == (429, ERROR, {"retry-after": "7"})
    assert await chunks_of(upstreams, base, "busy") == [busy]


@pytest.mark.parametrize(
    ("behaviour", "message", "kind"),
    [("fastapi error", '[{"loc": ["body", "n"]}]', "invalid_request_error"), ("error text", "no slot", "server_error")],
)
async def test_errors_of_any_format_become_openais_format(
    upstreams: UpstreamClient, base: str, behaviour: str, message: str, kind: str
) -> None:
    answer = await request(upstreams, base, behaviour)
    assert answer.body == {"error": {"message": message, "type": kind, "param": None, "code": None}}


async def test_the_request_has_the_operators_key(upstreams: UpstreamClient, base: str) -> None:
    await upstreams.complete(Upstream(base, "good", "UPSTREAM_KEY"), {"model": "good"})
    await request(upstreams, base, "good")
    assert [(path, key) for path, key, _ in Handler.seen[-2:]] == [
        ("/v1/chat/completions", "Bearer sk-upstream"),
        ("/v1/chat/completions", None),
    ]


async def test_the_callers_trace_goes_on_at_the_upstream_even_if_none_is_recorded_here(
    upstreams: UpstreamClient, base: str
) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with Tracing().request({"traceparent": parent}):
        await request(upstreams, base, "good")
    await request(upstreams, base, "good")
    assert Handler.traces[-2:] == [parent, None]


def test_a_key_that_is_not_set_is_an_error_at_start() -> None:
    with pytest.raises(StartError, match="UPSTREAM_KEY"):
        UpstreamClient([Upstream("http://x/v1", "x", "UPSTREAM_KEY")], {}, 10)


async def test_a_changed_catalog_may_name_another_key_that_is_set(upstreams: UpstreamClient, base: str) -> None:
    with pytest.raises(StartError, match="OTHER_KEY"):
        upstreams.load_keys([Upstream(base, "good", "OTHER_KEY")])
    later = UpstreamClient([], {"OTHER_KEY": "sk-other"}, 10)
    later.load_keys([Upstream(base, "good", "OTHER_KEY")])
    await later.complete(Upstream(base, "good", "OTHER_KEY"), {"model": "good"})
    await later.close()
    assert Handler.seen[-1][1] == "Bearer sk-other"


async def test_the_chunks_of_a_stream_are_forwarded(upstreams: UpstreamClient, base: str) -> None:
    assert await chunks_of(upstreams, base, "stream") == CHUNKS


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [("unauthorized", "upstream_refused"), ("moved", "upstream_failed"), ("json list", "upstream_failed")],
)
async def test_an_answer_that_can_not_be_forwarded_is_a_500(
    upstreams: UpstreamClient, base: str, behaviour: str, code: str
) -> None:
    for send in (request, chunks_of):
        with pytest.raises(EngineFailure) as raised:
            await send(upstreams, base, behaviour)
        assert raised.value.code == code


PREFIX = "The server behind model `{}` answered"


@pytest.mark.parametrize(
    ("behaviour", "status", "retry_after", "message", "code"),
    [
        ("broken", 502, None, PREFIX + " 502 Bad Gateway: Bad gateway", None),
        ("page", 502, None, PREFIX + " 502 Bad Gateway: 502 Bad Gateway", None),
        ("html429", 429, "7", PREFIX + " 429 Too Many Requests: Too Many Requests", "rate_limit_exceeded"),
        ("html413", 413, None, None, "request_too_large"),
        ("text404", 404, None, PREFIX + " 404 Not Found: 404 page not found", None),
        ("empty504", 504, None, PREFIX + " 504 Gateway Timeout.", None),
        ("fast503", 503, "5", "loading", "server_overloaded"),
    ],
)
async def test_an_error_keeps_its_status_whatever_its_form(
    upstreams: UpstreamClient,
    base: str,
    behaviour: str,
    status: int,
    retry_after: str | None,
    message: str | None,
    code: str | None,
) -> None:
    for answer in (await request(upstreams, base, behaviour), *await chunks_of(upstreams, base, behaviour)):
        error = answer.body["error"]
        assert (answer.status, answer.headers.get("retry-after")) == (status, retry_after)
        assert (error["param"], error["code"]) == (None, code)
        assert message is None or error["message"] == message.format(behaviour)


@pytest.mark.parametrize("behaviour", ["no done", "cut after its end"])
async def test_a_stream_with_its_finish_reason_is_whole(upstreams: UpstreamClient, base: str, behaviour: str) -> None:
    assert (await chunks_of(upstreams, base, behaviour))[:3] == [*CHUNKS, END]


@pytest.mark.parametrize("behaviour", ["cut", "garbled", "half done", "nothing"])
async def test_a_broken_stream_is_an_error(upstreams: UpstreamClient, base: str, behaviour: str) -> None:
    with pytest.raises(EngineFailure) as raised:
        await chunks_of(upstreams, base, behaviour)
    assert raised.value.code == "upstream_failed"


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("long answer", "an answer of more than 2 MiB"),
        ("long error", "an answer of more than 1 MiB"),
        ("compressed", "a compressed answer, though it was asked for a plain one"),
        ("compressed stream", "a compressed answer, though it was asked for a plain one"),
        ("long stream", "an answer of more than 1 MiB"),
        ("long line", "a line of more than 2 MiB"),
        ("many lines", "an event of more than 2 MiB"),
    ],
)
async def test_what_does_not_end_is_given_up(
    upstreams: UpstreamClient, base: str, behaviour: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.backends.answer_bounds.MAX_ANSWER_BYTES", 2 * 2**20)
    monkeypatch.setattr("server.backends.answer_bounds.MAX_STREAM_BYTES", 2**20 if "stream" in behaviour else 2**30)
    monkeypatch.setattr("server.backends.event_objects.MAX_EVENT_BYTES", 2 * 2**20)
    with pytest.raises(EngineFailure) as raised:
        await chunks_of(upstreams, base, behaviour)
    assert raised.value.message == f"The server behind model `{behaviour}` sent too much: {said}."
    if "long answer" in behaviour:
        with pytest.raises(EngineFailure):
            await request(upstreams, base, behaviour)


async def test_an_error_is_read_in_part_however_it_is_written(upstreams: UpstreamClient, base: str) -> None:
    page, long, odd = [await request(upstreams, base, name) for name in ("unread page", "long message", "no words")]
    assert page.body["error"]["message"] == "The server behind model `unread page` answered 502 Bad Gateway: Lost"
    assert len(long.body["error"]["message"]) == 8000
    assert odd.headers == {"retry-after": "5"}


async def test_what_json_has_no_number_for_is_told_in_numbers(upstreams: UpstreamClient, base: str) -> None:
    assert (await request(upstreams, base, "no numbers at all")).body == {"choices": NUMBERS}
    assert await chunks_of(upstreams, base, "no numbers") == [{"choices": NUMBERS}]


async def test_an_unreachable_upstream_is_a_503_and_a_timeout_a_504(upstreams: UpstreamClient) -> None:
    with pytest.raises(Overloaded) as refused:
        await request(upstreams, "http://127.0.0.1:9/v1", "good")
    assert refused.value.headers["Retry-After"] == "5"
    impatient = UpstreamClient([], {}, 0.05)
    unresponsive = http.server.HTTPServer(("127.0.0.1", 0), Handler)  # it listens, and never answers
    timed_out: ApiError | None = None
    try:
        await request(impatient, f"http://127.0.0.1:{unresponsive.server_port}/v1", "good")
    except TimedOut as error:
        timed_out = error
    unresponsive.server_close()
    await impatient.close()
    assert timed_out is not None


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def parts(upstreams: UpstreamClient, metrics: Metrics, tmp_path: Path) -> ChatParts:
    """Its database has no tables, so that tokens can't be counted."""
    engine = EngineHost[ChatJob | CountJob, ChatEvent]("chat", (), HostLimits(1))
    runner = ChatRunner(
        engine, metrics, Tracing(), Database(f"sqlite:///{tmp_path / 'darkroom.db'}"), BackgroundTasks()
    )
    none: Any = None
    return ChatParts(none, none, none, runner, upstreams, metrics, time_limit_s=9.0, leave_out_pictures=False)


def source(parts: ChatParts, base: str, behaviour: str) -> UpstreamSource:
    upstream = Upstream(base, behaviour, None)
    return UpstreamSource(parts, ChatModel(behaviour, "chat", upstream), upstream)


async def stream_as(parts: ChatParts, base: str, behaviour: str) -> list[Any]:
    return [item async for item in source(parts, base, behaviour).stream({}, UsageContext(KEY, behaviour))]


async def ask_as(parts: ChatParts, base: str, behaviour: str) -> UpstreamResponse:
    return await source(parts, base, behaviour).request({}, UsageContext(KEY, behaviour))


def outcomes(metrics: Metrics) -> dict[tuple[str, str], float]:
    samples = [sample for metric in metrics.chats.collect() for sample in metric.samples]
    return {(s.labels["model"], s.labels["outcome"]): s.value for s in samples if s.name.endswith("_total")}


async def test_an_answer_is_returned_even_if_its_tokens_can_not_be_counted(parts: ChatParts, base: str) -> None:
    for behaviour in ("with usage", "invalid usage"):
        with capture_logs() as logs:
            answer = await ask_as(parts, base, behaviour)
        assert answer.status == 200
        assert [entry["event"] for entry in logs] == ["tokens were not counted"]


async def test_tokens_that_no_answer_has_are_not_counted(parts: ChatParts, metrics: Metrics, base: str) -> None:
    with capture_logs() as logs:
        await ask_as(parts, base, "unheard usage")
    assert [entry["exc_info"] for entry in logs] == [True], "of the database, which is not there"
    samples = [sample for metric in metrics.chat_tokens.collect() for sample in metric.samples]
    assert {sample.value for sample in samples if sample.name.endswith("_total")} == {0.0}


async def test_an_error_in_a_stream_is_raised_unless_it_is_null(parts: ChatParts, base: str) -> None:
    assert len(await stream_as(parts, base, "null errors")) == len(CHUNKS) + 1  # the end, which they do not have
    with pytest.raises(EngineFailure, match="no memory"):
        await stream_as(parts, base, "failing")


async def test_the_status_in_the_first_event_of_a_stream_is_the_answers(parts: ChatParts, base: str) -> None:
    (answer,) = await stream_as(parts, base, "refused stream")
    assert (answer.status, answer.error.message, answer.error.code) == (429, "too many", "rate_limit_exceeded")
    assert answer.headers["retry-after"] == "5"


async def test_a_whole_answer_in_place_of_a_stream_is_streamed(parts: ChatParts, base: str) -> None:
    item, end = await stream_as(parts, base, "no stream")
    assert item.body["choices"] == [{"delta": {"content": "a"}}]
    assert end.body["choices"][0]["finish_reason"] == "stop"


async def test_an_error_without_its_own_field_is_no_empty_answer(parts: ChatParts, base: str) -> None:
    for behaviour in ("error object", "error body", "detail"):
        (streamed,) = await stream_as(parts, base, behaviour)
        for answer in (streamed, *([] if "object" in behaviour else [await ask_as(parts, base, behaviour)])):
            assert answer.error is not None
            assert (answer.status, answer.error.code) == (400, "context_length_exceeded"), behaviour
            assert (answer.error.tokens, answer.error.context) == (61_709, 40_960)
    with pytest.raises(ContextExceeded):
        await stream_as(parts, base, "error object later")


async def test_an_answer_that_was_broken_off_is_an_error(parts: ChatParts, base: str) -> None:
    with pytest.raises(EngineFailure, match="broke the answer off: abort"):
        await stream_as(parts, base, "aborted")
    assert (await ask_as(parts, base, "aborted whole")).status == 500
    with pytest.raises(EngineFailure, match="ended its stream early"):
        await stream_as(parts, base, "no choice")


async def test_every_outcome_is_counted(parts: ChatParts, metrics: Metrics, base: str) -> None:
    for behaviour in ("good", "busy", "broken"):
        await ask_as(parts, base, behaviour)
    with pytest.raises(EngineFailure):
        await ask_as(parts, base, "json list")
    await stream_as(parts, base, "stream")
    expected = {
        ("json list", "cut"): 1,
        ("good", "finished"): 1,
        ("busy", "429"): 1,
        ("broken", "502"): 1,
        ("stream", "finished"): 1,
    }
    assert outcomes(metrics) == expected
