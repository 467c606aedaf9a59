"""From what a chat model says to items and events. One scribe writes one turn of the model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.protocol.chat import (
    ChatDelta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    TopToken,
)
from server.flows.responses.context import IMAGE_FUNCTION
from server.flows.responses.items import new_id
from server.schemas.response_object import Json, function_item, image_item, message_item, reasoning_item, text_part
from server.state.active_responses import LiveResponse


@dataclass(slots=True)
class Call:
    """A tool call of this turn, as far as it has come."""

    index: int  # of its item in the output
    item_id: str
    call_id: str
    name: str
    arguments: str = ""

    @property
    def draws(self) -> bool:
        """Whether it is for the image tool."""
        return self.name == IMAGE_FUNCTION


@dataclass(slots=True)
class _Open:
    """The message or the reasoning that is being written."""

    index: int
    item_id: str
    reasons: bool
    text: str = ""
    logprobs: list[Json] = field(default_factory=list)


class Scribe:
    """`write` deltas as they come, then `close`. Image calls are begun here and left open: who draws ends them."""

    def __init__(self, live: LiveResponse, *, hosted: bool, may_draw: int, logprobs: bool) -> None:
        self._live = live
        self._hosted = hosted
        self._may_draw = may_draw
        self._logprobs = logprobs
        self._open: _Open | None = None
        self.calls: dict[int, Call] = {}
        self.text = ""
        self.done: list[tuple[int, Json]] = []  # items that this turn completed, for the books

    def write(self, delta: ChatDelta) -> None:
        """Tell one delta."""
        match delta:
            case ToolCallDelta():
                self._write_call(delta)
            case TextDelta():
                self._write_text(delta.text, delta.logprobs, reasons=False)
            case ReasoningDelta():
                self._write_text(delta.text, (), reasons=True)

    def force_drawing(self) -> None:
        """Begin a drawing that the model did not ask for, though it had to."""
        call = self._begin_call(IMAGE_FUNCTION, new_id("function_call"))
        if call is not None:
            self.calls[-1] = call

    def close(self, reason: FinishReason) -> None:
        """The model has ended its turn."""
        status = "incomplete" if reason == "length" else "completed"
        self._close_text(status)
        for call in self.calls.values():
            if not self._is_drawing(call):
                self._close_function(call, status)

    @property
    def drawings(self) -> list[Call]:
        """The calls of the image tool."""
        return [call for call in self.calls.values() if self._is_drawing(call)]

    @property
    def functions(self) -> list[Call]:
        """The calls of the caller's functions."""
        return [call for call in self.calls.values() if not self._is_drawing(call)]

    def _is_drawing(self, call: Call) -> bool:
        return self._hosted and call.draws

    def _write_text(self, text: str, tokens: Sequence[TokenLogprob], *, reasons: bool) -> None:
        if self._open is not None and self._open.reasons != reasons:
            self._close_text("completed")
        if self._open is None:
            self._open = self._begin_text(reasons=reasons)
        part = self._open
        part.text += text
        fields: Json = {"item_id": part.item_id, "output_index": part.index, "content_index": 0, "delta": text}
        if reasons:
            self._live.tell("response.reasoning_text.delta", **fields)
            return
        self.text += text
        said = [_logprob(token) for token in tokens] if self._logprobs else []
        part.logprobs += said
        self._live.tell("response.output_text.delta", **fields, logprobs=said)

    def _begin_text(self, *, reasons: bool) -> _Open:
        item_id = new_id("reasoning" if reasons else "message")
        item = reasoning_item(item_id, "in_progress", "") if reasons else message_item(item_id, "in_progress", [])
        index = self._add_item(item)
        if not reasons:
            fields = {"item_id": item_id, "output_index": index, "content_index": 0}
            self._live.tell("response.content_part.added", **fields, part=text_part(""))
        return _Open(index, item_id, reasons)

    def _close_text(self, status: str) -> None:
        part, self._open = self._open, None
        if part is None:
            return
        fields: Json = {"item_id": part.item_id, "output_index": part.index, "content_index": 0}
        if part.reasons:
            self._live.tell("response.reasoning_text.done", **fields, text=part.text)
            self._end_item(part.index, reasoning_item(part.item_id, status, part.text))
            return
        whole = text_part(part.text, part.logprobs)
        self._live.tell("response.output_text.done", **fields, text=part.text, logprobs=part.logprobs)
        self._live.tell("response.content_part.done", **fields, part=whole)
        self._end_item(part.index, message_item(part.item_id, status, [whole]))

    def _write_call(self, delta: ToolCallDelta) -> None:
        call = self.calls.get(delta.index)
        if call is None:
            self._close_text("completed")
            call = self._begin_call(delta.name, delta.call_id) if delta.name and delta.call_id else None
            if call is None:
                return
            self.calls[delta.index] = call
        call.arguments += delta.arguments
        if delta.arguments and not self._is_drawing(call):
            fields = {"item_id": call.item_id, "output_index": call.index, "delta": delta.arguments}
            self._live.tell("response.function_call_arguments.delta", **fields)

    def _begin_call(self, name: str, call_id: str) -> Call | None:
        """None for a picture beyond max_tool_calls, which is passed over."""
        if self._hosted and name == IMAGE_FUNCTION:
            if self._may_draw <= len(self.drawings):
                return None
            item_id = new_id("image_generation_call")
            index = self._add_item(image_item(item_id, "in_progress"))
            fields = {"item_id": item_id, "output_index": index}
            self._live.tell("response.image_generation_call.in_progress", **fields)
            return Call(index, item_id, call_id, name)
        item_id = new_id("function_call")
        index = self._add_item(function_item(item_id, "in_progress", call_id, name, ""))
        return Call(index, item_id, call_id, name)

    def _close_function(self, call: Call, status: str) -> None:
        fields = {"item_id": call.item_id, "output_index": call.index, "name": call.name, "arguments": call.arguments}
        self._live.tell("response.function_call_arguments.done", **fields)
        self._end_item(call.index, function_item(call.item_id, status, call.call_id, call.name, call.arguments))

    def _add_item(self, item: Json) -> int:
        self._live.output.append(item)
        index = len(self._live.output) - 1
        self._live.tell("response.output_item.added", output_index=index, item=item)
        return index

    def _end_item(self, index: int, item: Json) -> None:
        self._live.output[index] = item
        self.done.append((index, item))
        self._live.tell("response.output_item.done", output_index=index, item=item)


def _logprob(token: TokenLogprob) -> Json:
    return {**_top(token), "top_logprobs": [_top(top) for top in token.top]}


def _top(token: TokenLogprob | TopToken) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}
