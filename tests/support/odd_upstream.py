"""A server that speaks OpenAI's protocol a little otherwise: how, the words of the last message say."""

import http.server
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from tests.support.local_http import QuietHandler, running

TOO_LONG = (
    "This model's maximum context length is 20000 tokens. However, you requested 22000 tokens (21000 in the messages, "
    "1000 in the completion). Please reduce the length of the messages or completion."
)
NO_ROOM = (
    "'max_tokens' or 'max_completion_tokens' is too large: {}. This model's maximum context length is 20000 tokens and "
    "your request has 19700 input tokens ({} > 20000 - 19700)."
)
ERRORS: dict[str, tuple[int, dict[str, str], str]] = {
    "html429": (429, {"Retry-After": "7", "Content-Type": "text/html"}, "<html>Too Many Requests</html>"),
    "html502": (502, {"Content-Type": "text/html"}, "<html>Bad Gateway</html>"),
    "html413": (413, {"Content-Type": "text/html"}, "<html>413 Request Entity Too Large</html>"),
    "text404": (404, {"Content-Type": "text/plain"}, "404 page not found"),
    "detail422": (422, {}, json.dumps({"detail": [{"loc": ["body", "x"], "msg": "Field required"}]})),
    "said429": (200, {}, json.dumps({"error": {"message": "slow down", "code": 429}})),
    "said500": (200, {}, json.dumps({"error": "out of memory"})),
    "context400": (
        400,
        {},
        json.dumps({"object": "error", "message": TOO_LONG, "type": "BadRequestError", "code": 400}),
    ),
    "fast503": (503, {}, json.dumps({"error": {"message": "loading", "type": "unavailable_error", "code": 503}})),
}
EVENTS = "text/event-stream"
TYPES = {"plaintype": "text/plain; charset=utf-8", "octettype": "application/octet-stream"}  # by the last word
WRITTEN: dict[str, Callable[[str], str]] = {  # how the text of a stream is written
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "cr-alone": lambda text: text.replace("\n", "\r"),
    "oneline": lambda text: text.replace("\n\n", "\n"),
    "overlines": lambda text: text.replace(", ", ",\ndata: "),
    "nospace": lambda text: text.replace("data: ", "data:"),
    "bom": lambda text: f"\ufeff{text}",
    "named": lambda text: text.replace("data: ", ": now\nid: 3\nevent: message\ndata: "),
    "separator": lambda text: text.replace("Hel", "Hel\u2028\u0085"),
}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


class _Handler(QuietHandler):
    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append(body)
        kind = " ".join(str(message.get("content")) for message in body["messages"])
        status, headers, text = next((ERRORS[name] for name in ERRORS if name in kind), (200, {}, ""))
        if "room300" in kind and (asked := body.get("max_tokens", 0)) > 300:
            status, text = 400, json.dumps({"error": {"message": NO_ROOM.format(asked, asked), "code": 400}})
        if not text and body.get("stream"):
            written = next((WRITTEN[name] for name in WRITTEN if name in kind), str)
            headers, text = {"Content-Type": TYPES.get(kind.split()[-1], EVENTS)}, written("".join(_stream(kind)))
        elif not text:
            message = {"role": "assistant", "content": "Hello"}
            text = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE})
        self.send_response(status)
        sent = text.encode()
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": len(sent)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(sent)


def _calls(kind: str) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = [
        {
            "index": index,
            "id": f"call_{city}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
        }
        for index, city in enumerate(("Rome", "Oslo"))
    ]
    for call in calls:
        if "noindex" in kind:
            del call["index"]
        if "index0" in kind:
            call["index"] = 0
        if "noid" in kind:
            del call["id"]
        if "nulltype" in kind:
            call["type"] = None
        if "argsobj" in kind:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return calls


def _stream(kind: str) -> Iterator[str]:
    if broken := next((text for name, text in BROKEN.items() if name in kind), ""):
        yield broken
        return
    yield _chunk({"role": "assistant", "content": None if "nullcontent" in kind else ""})
    if "tool" in kind:
        for call in _calls(kind):
            yield _chunk({"tool_calls": [call]})
        yield _chunk({}, "stop" if "finstop" in kind else "tool_calls")
    elif "parts" in kind:
        yield _chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]})
        yield _chunk({"content": [{"type": "text", "text": "Hello"}]}, "stop")
    elif "refusal" in kind:
        yield _chunk({"refusal": "Hello"}, "stop")
    elif "choice502" in kind:
        yield _chunk({}, "error", error={"message": "no provider", "code": 502})
    elif "event503" in kind:
        yield 'event: error\ndata: {"message": "lost", "code": 503}\n\n'
    elif "inmessage" in kind:
        yield _chunk({}, "stop", message={"content": "Hello"})
    else:
        yield _chunk({"content": "Hel"})
        yield _chunk({"content": "lo"}, "stop" if "finwith" in kind else None)
        yield _chunk({}, "stop") if "finwith" not in kind else ""
    if "nousage" not in kind:
        choices: dict[str, Any] = {} if "nochoices" in kind else {"choices": []}
        yield f"data: {json.dumps({'id': 'x', **choices, 'usage': USAGE})}\n\n"
    if "nodone" not in kind:
        yield "data: [DONE]\n\n"


def _chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, **more}
    chunk = {"id": "x", "object": "chat.completion.chunk", "choices": [choice]}
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


ERROR_EVENT = f"data: {json.dumps({'error': {'message': TOO_LONG, 'code': 400}})}\n\n"
BROKEN = {
    "onlydone": "data: [DONE]\n\n",
    "contextfirst": ERROR_EVENT,
    "contextmid": _chunk({"role": "assistant", "content": ""}) + ERROR_EVENT,
}


@contextmanager
def odd_upstream() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run the server until the block ends: its address, and the bodies that it gets."""
    _Handler.bodies.clear()
    with running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/v1", _Handler.bodies
