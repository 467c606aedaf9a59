"""A server that speaks OpenAI's protocol, as vLLM does, and whose output is scripted: it calls one tool where that is
offered, and answers once it was told. With a `context`, it refuses what is longer, in vLLM's words."""

import http.server
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.local_http import QuietHandler, running

Json = dict[str, Any]
USAGE = {"prompt_tokens": 100, "completion_tokens": 9, "total_tokens": 109}
THOUGHT = "I think about it."


class ScriptedUpstream(QuietHandler):
    """Set `calls`, arguments by tools' names, `answer` and `context` before use. `bodies` are what came."""

    calls: Mapping[str, Json]
    answer: str
    context: int | None
    bodies: list[Json]

    def do_GET(self) -> None:
        card = {"id": "large", "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": self.context}
        self._send(200, "application/json", json.dumps({"object": "list", "data": [card]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append(body)
        if refusal := self._refusal(body):
            error = {"message": refusal, "type": "BadRequestError", "param": "input_tokens", "code": 400}
            self._send(400, "application/json", json.dumps({"error": error}))
            return
        message, reason = self._message(body)
        usage = {**USAGE, "prompt_tokens": tokens_of(body)}
        if body.get("stream"):
            kind, text = "text/event-stream", "".join(_stream(message, reason, usage))
        else:
            choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
            kind, text = (
                "application/json",
                json.dumps({**_head("chat.completion"), "choices": [choice], "usage": usage}),
            )
        self._send(200, kind, text)

    def _refusal(self, body: Json) -> str | None:
        """Return why vLLM refuses the body; None if it does not."""
        if self.context is None:
            return None
        tokens, asked = tokens_of(body), body.get("max_completion_tokens") or body.get("max_tokens") or 0
        if tokens + asked <= self.context and tokens < self.context:
            return None
        return (
            f"This model's maximum context length is {self.context} tokens. However, you requested {asked} output "
            f"tokens and your prompt contains at least {tokens} input tokens, for a total of at least {tokens + asked} "
            "tokens. "
            "Please reduce the length of the input prompt or the number of requested output tokens. "
            f"(parameter=input_tokens, value={tokens})"
        )

    def _send(self, status: int, kind: str, text: str) -> None:
        sent = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def _message(self, body: Json) -> tuple[Json, str]:
        offered = [tool["function"]["name"] for tool in body.get("tools") or ()]
        name = next((each for each in self.calls if each in offered), None)
        if name is None or _is_told(body["messages"]):
            return {"content": self.answer}, "stop"
        function = {"name": name, "arguments": json.dumps(self.calls[name])}
        call = {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
        return {"content": None, "reasoning_content": THOUGHT, "tool_calls": [call]}, "tool_calls"


def tokens_of(body: Json) -> int:
    """Return about how many tokens a body has as a prompt."""
    return len(json.dumps([body["messages"], body.get("tools")])) // 4


def _is_told(messages: list[Json]) -> bool:
    """Return whether a tool has answered since the assistant spoke last."""
    spoken = [message["role"] for message in messages if message["role"] in {"tool", "assistant"}]
    return spoken[-1:] == ["tool"]


def _head(kind: str) -> Json:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "m"}


def _stream(message: Json, reason: str, usage: Json) -> Iterator[str]:
    def chunk(delta: Json, end: str | None = None) -> str:
        choices = [{"index": 0, "delta": delta, "finish_reason": end}]
        return f"data: {json.dumps({**_head('chat.completion.chunk'), 'choices': choices})}\n\n"

    yield chunk({"role": "assistant", "content": ""})
    if "reasoning_content" in message:
        yield chunk({"reasoning_content": message["reasoning_content"]})
    for word in message["content"].split(" ") if message["content"] else ():
        yield chunk({"content": f"{word} "})
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        yield chunk({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        for piece in (function["arguments"][:5], function["arguments"][5:]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, reason)
    yield f"data: {json.dumps({**_head('chat.completion.chunk'), 'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


@contextmanager
def scripted_upstream(
    calls: Mapping[str, Json], answer: str, context: int | None = None
) -> Iterator[tuple[str, list[Json]]]:
    """Run the server until the block ends: its address, and the bodies that it gets."""
    fields = {"calls": calls, "answer": answer, "context": context, "bodies": []}
    handler = type("Scripted", (ScriptedUpstream,), fields)
    with running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/v1", handler.bodies
