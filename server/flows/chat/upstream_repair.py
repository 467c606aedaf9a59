"""What servers send a little otherwise than OpenAI's, as OpenAI's has it: the calls of tools, and why an answer ended.

Some send no `index` with the pieces of calls, or 0 with all of them; no ids; arguments as an object, or none; `stop` as
the reason of an answer that ends with calls, and of one that was cut inside a call; a reason of their own, or none;
content in parts, with reasoning among them, or reasoning in details alone; no `logprobs` or `refusal` where there are
none; a whole answer where a stream was asked for.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from server.conversation.blocks import json_text

Json = dict[str, Any]
NO_ARGUMENTS = "{}"  # of a call: others can't read an empty text as JSON
OTHER_REASONS = {
    "stop": {"eos", "eos_token", "end_turn", "stop_sequence", "complete", "completed"},
    "length": {"max_tokens", "max_length", "max_output_tokens", "model_length"},
    "tool_calls": {"tool_use", "tool_call"},
}
REASONS = {theirs: ours for ours, others in OTHER_REASONS.items() for theirs in others}


@dataclass(slots=True)
class _Call:
    """A call whose pieces come: what its server sent of it so far."""

    index: int  # ours
    sent_id: str | None
    name: str | None
    arguments: str = ""


class _Calls:
    """The calls of one choice. Of two pieces with one index, or none, a new id or name opens another call."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._open: dict[int | None, _Call] = {}  # by the index that was sent

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def are_cut(self) -> bool:
        """Return whether the arguments of the last call are the beginning of JSON."""
        written = self._calls[-1].arguments
        return bool(written) and not _is_whole(written) and _is_whole(written, partial=True)

    def fill(self) -> Iterator[Json]:
        """Yield the arguments of calls that have none."""
        for call in self._calls:
            if not call.arguments and call.name is not None:
                call.arguments = NO_ARGUMENTS
                yield {"index": call.index, "function": {"arguments": call.arguments}}

    def place(self, piece: Json) -> Json:
        """Return the piece as OpenAI's server would send it: a call is announced once, with its id and its name."""
        sent, function = piece.get("index"), piece.get("function")
        index = sent if isinstance(sent, int) else None
        fields = function if isinstance(function, dict) else {}
        call_id, name, text = _text(piece.get("id")), _text(fields.get("name")), json_text(fields.get("arguments"))
        call = self._find(index, call_id, name, text)
        if call is None:
            call = _Call(len(self._calls), None, None)
            self._calls.append(call)
        self._open[index] = call
        announced = call.name is not None
        call.name, call.sent_id, call.arguments = call.name or name, call.sent_id or call_id, call.arguments + text
        rest = {key: value for key, value in piece.items() if key not in {"index", "id", "type", "function"}}
        if announced or name is None:
            return {"index": call.index, **rest, "function": {"arguments": text if announced else ""}}
        made = {"name": name, "arguments": call.arguments}
        return {"index": call.index, "id": self._id(call), "type": "function", **rest, "function": made}

    def _find(self, index: int | None, call_id: str | None, name: str | None, arguments: str) -> _Call | None:
        """Return the call that a piece goes on with; None for a new one."""
        call = self._open.get(index) if index is not None else (self._calls[-1] if self._calls else None)
        if call_id is not None and (call is None or call.sent_id not in {None, call_id}):
            earlier = next((each for each in self._calls if each.sent_id == call_id), None)
            return earlier if name is None or earlier is None or index is None else None
        if call is None or name is None or call.name is None:
            return call
        if name != call.name:
            return None
        repeats = call_id is None and call.sent_id is None and bool(arguments) and _is_whole(call.arguments)
        return None if repeats else call

    def _id(self, call: _Call) -> str:
        """Return the id that was sent, unless there is none, or another call has it."""
        taken = any(each is not call and each.sent_id == call.sent_id for each in self._calls)
        return f"call_{uuid.uuid4().hex}" if call.sent_id is None or taken else call.sent_id


class StreamRepair:
    """Repairs the chunks of one stream, in their order."""

    def __init__(self) -> None:
        self._calls: dict[int, _Calls] = {}  # by choice
        self._open: dict[int, Json] = {}  # choices without a reason yet: what their last chunk says of itself

    def ends(self) -> Iterator[Json]:
        """Yield the ends of the choices that a stream which is complete gave no reason for."""
        for index, head in self._open.items():
            end = _ended({"index": index, "delta": {}, "logprobs": None, "finish_reason": "stop"}, self._calls[index])
            yield {**head, "choices": [end]}

    def chunk(self, chunk: Json) -> Json:
        """Return the chunk, repaired. What has another shape than a chunk is returned as it is."""
        choices = chunk.get("choices")
        if not isinstance(chunk.get("usage"), dict | None):
            chunk = {name: value for name, value in chunk.items() if name != "usage"}
        if not isinstance(choices, list):
            return chunk
        head = {name: value for name, value in chunk.items() if name not in {"choices", "usage"}}
        return {**chunk, "choices": [self._choice(each, head) if isinstance(each, dict) else each for each in choices]}

    def _choice(self, choice: Json, head: Json) -> Json:
        sent, delta = choice.get("index"), _delta_of(choice)
        index = sent if isinstance(sent, int) else 0
        calls = self._calls.setdefault(index, _Calls())
        if choice.get("finish_reason"):
            self._open.pop(index, None)
        else:
            self._open[index] = head
        if delta is not None:
            delta = _with_reasoning(_in_one_text(delta))
            if isinstance(pieces := delta.get("tool_calls"), list):
                delta = {**delta, "tool_calls": [calls.place(each) if _is_call(each) else each for each in pieces]}
            choice = {**choice, "delta": delta}
        return _ended(choice, calls) if choice.get("finish_reason") else choice


def repaired_completion(body: Json) -> Json:
    """Return a whole completion, repaired."""
    choices = body.get("choices")
    if not isinstance(choices, list):
        return body
    return {**body, "choices": [_whole_choice(each) if isinstance(each, dict) else each for each in choices]}


def as_chunks(body: Json) -> Iterator[Json]:
    """Yield the chunks of a completion that came whole, where a stream was asked for."""
    head = {name: value for name, value in body.items() if name not in {"choices", "usage"}}
    head = {**head, "object": "chat.completion.chunk"}
    choices = [each for each in body["choices"] if isinstance(each, dict)]
    for choice in choices:
        message = choice.get("message")
        rest = {name: value for name, value in choice.items() if name != "message"}
        yield {**head, "choices": [{**rest, "delta": message if isinstance(message, dict) else {}}]}
    if isinstance(usage := body.get("usage"), dict):
        yield {**head, "choices": [], "usage": usage}


def _delta_of(choice: Json) -> Json | None:
    """Return what a chunk adds. Some servers send it as a `message`, or as the `text` of older completions. None for
    another shape."""
    delta, message, text = choice.get("delta"), choice.get("message"), choice.get("text")
    if not delta and isinstance(message, dict):
        return message
    if not delta and isinstance(text, str):
        return {"content": text}
    return delta if isinstance(delta, dict) else None


def _in_one_text(message: Json) -> Json:
    """Return the message with its content as one text, where it came in parts: those of reasoning beside it."""
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    thoughts = "".join(_text_of(part) for part in parts if _is_thought(part))
    text = "".join(_text_of(part) for part in parts if not _is_thought(part))
    return {**message, "content": text, **({"reasoning_content": thoughts} if thoughts else {})}


def _with_reasoning(message: Json) -> Json:
    """Return the message with its reasoning as one text, where it came in details alone."""
    details = message.get("reasoning_details")
    if not isinstance(details, list) or message.get("reasoning") or message.get("reasoning_content"):
        return message
    thoughts = "".join(_text_of(each) for each in details)
    return {**message, "reasoning_content": thoughts} if thoughts else message


def _is_thought(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in {"thinking", "reasoning"}


def _text_of(part: object) -> str:
    """Return the text of a part, which may be in parts itself."""
    if isinstance(part, list):
        return "".join(_text_of(each) for each in part)
    if isinstance(part, dict):
        return _text_of(part.get("text") or part.get("thinking") or part.get("reasoning") or part.get("summary"))
    return part if isinstance(part, str) else ""


def _whole_choice(choice: Json) -> Json:
    message, calls = choice.get("message"), _Calls()
    if not isinstance(message, dict):
        return choice
    message = {
        "content": None,
        "refusal": None,
        **_with_reasoning(_in_one_text(message)),
    }  # which OpenAI's schema requires
    choice = {"logprobs": None, **choice, "message": message}
    if not isinstance(sent := message.get("tool_calls"), list) or not sent:
        return {**choice, "finish_reason": _reason(choice.get("finish_reason"), calls)}
    made = [_whole_call(call, calls, index) if _is_call(call) else call for index, call in enumerate(sent)]
    reason = _reason(choice.get("finish_reason"), calls)
    for call in made if reason == "tool_calls" else ():
        if _is_call(call) and not call["function"]["arguments"]:
            call["function"]["arguments"] = NO_ARGUMENTS
    return {**choice, "message": {**message, "tool_calls": made}, "finish_reason": reason}


def _whole_call(call: Json, calls: _Calls, index: int) -> Json:
    written = calls.place({**call, "index": index})
    return {name: value for name, value in written.items() if name != "index" or "index" in call}


def _ended(choice: Json, calls: _Calls) -> Json:
    """Return the choice at its end: with OpenAI's reason, and the arguments of calls that have none."""
    choice = {**choice, "finish_reason": _reason(choice["finish_reason"], calls)}
    delta = choice.get("delta") or {}
    if choice["finish_reason"] != "tool_calls" or not isinstance(delta, dict) or not (filled := [*calls.fill()]):
        return choice
    return {**choice, "delta": {**delta, "tool_calls": [*(delta.get("tool_calls") or ()), *filled]}}


def _reason(sent: object, calls: _Calls) -> Any:
    """Return why an answer ended: some servers say of one whose tokens ran out inside a call that it is complete, and
    some say nothing."""
    reason = REASONS.get(sent.lower(), sent) if isinstance(sent, str) and sent else "stop"
    if not calls or reason not in {"stop", "tool_calls"}:
        return reason
    return "length" if calls.are_cut else "tool_calls"


def _is_call(piece: object) -> bool:
    """Return whether it is a function's call, or more of one: those of custom tools are passed on as they are."""
    return isinstance(piece, dict) and "custom" not in piece


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _is_whole(text: str, *, partial: bool = False) -> bool:
    try:
        from_json(text, allow_partial=partial)
    except ValueError:
        return False
    return True
