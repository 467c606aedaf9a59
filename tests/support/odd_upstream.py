"""A server that speaks OpenAI's protocol a little otherwise: how, the words of the last message say."""

import http.server
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from tests.support.local_http import QuietHandler, running

ERRORS: dict[str, tuple[int, dict[str, str], str]] = {
    "html429": (429, {"Retry-After": "7", "Content-Type": "text/html"}, "<html>Too Many Requests</html>"),
    "html502": (502, {"Content-Type": "text/html"}, "<html>Bad Gateway</html>"),
    "html413": (413, {"Content-Type": "text/html"}, "<html>413 Request Entity Too Large</html>"),
    "text404": (404, {"Content-Type": "text/plain"}, "404 page not found"),
    "detail422": (422, {}, json.dumps({"detail": [{"loc": ["body", "x"], "msg": "Field required"}]})),
    "fast503": (503, {}, json.dumps({"error": {"message": "loading", "type": "unavailable_error", "code": 503}})),
}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


class _Handler(QuietHandler):
    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append(body)
        kind = " ".join(str(message.get("content")) for message in body["messages"])
        status, headers, text = next((ERRORS[name] for name in ERRORS if name in kind), (200, {}, ""))
        if status == 200 and body.get("stream"):
            headers, text = {"Content-Type": "text/event-stream"}, "".join(_stream(kind))
        elif status == 200:
            message = {"role": "assistant", "content": "Hello"}
            text = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE})
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": len(text)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(text.encode())


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
    yield _chunk({"role": "assistant", "content": None if "nullcontent" in kind else ""})
    if "tool" in kind:
        for call in _calls(kind):
            yield _chunk({"tool_calls": [call]})
        yield _chunk({}, "stop" if "finstop" in kind else "tool_calls")
    else:
        yield _chunk({"content": "Hel"})
        yield _chunk({"content": "lo"}, "stop" if "finwith" in kind else None)
        yield _chunk({}, "stop") if "finwith" not in kind else ""
    if "nousage" not in kind:
        choices: dict[str, Any] = {} if "nochoices" in kind else {"choices": []}
        yield f"data: {json.dumps({'id': 'x', **choices, 'usage': USAGE})}\n\n"
    if "nodone" not in kind:
        yield "data: [DONE]\n\n"


def _chunk(delta: dict[str, Any], reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return f"data: {json.dumps({'id': 'x', 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"


@contextmanager
def odd_upstream() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run the server until the block ends: its address, and the bodies that it gets."""
    _Handler.bodies.clear()
    with running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/v1", _Handler.bodies
