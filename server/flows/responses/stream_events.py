"""From the deltas of a chat model to output items and stream events. One writer for each turn of the model."""

from collections.abc import Mapping, Sequence
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
from server.flows.chat.custom_input import CustomInput
from server.flows.responses.items import new_id
from server.flows.responses.tools import IMAGE_FUNCTION, CalledTool
from server.schemas.response_object import (
    Json,
    custom_item,
    function_item,
    image_item,
    message_item,
    reasoning_item,
    text_part,
)
from server.state.active_responses import ActiveResponse


@dataclass(slots=True)
class ToolCall:
    """A tool call of this turn; its arguments may still be incomplete."""

    index: int  # of its item in the output
    item_id: str
    call_id: str
    name: str
    arguments: str = ""
    namespace: str | None = None
    custom: CustomInput | None = None  # of a custom tool


@dataclass(slots=True)
class _Open:
    """The message or reasoning item that is not closed yet."""

    index: int
    item_id: str
    is_reasoning: bool
    text: str = ""
    logprobs: list[Json] = field(default_factory=list)


class EventWriter:
    """Turns a turn's deltas into output items and events: `write` them as they come, then `close`. Image calls are
    opened here and closed by the tool loop."""

    def __init__(
        self,
        response: ActiveResponse,
        *,
        hosted: bool,
        max_image_calls: int,
        logprobs: bool,
        called: Mapping[str, CalledTool],
    ) -> None:
        self._response = response
        self._called = called
        self._hosted = hosted
        self._max_image_calls = max_image_calls
        self._logprobs = logprobs
        self._open: _Open | None = None
        self.calls: dict[int, ToolCall] = {}
        self.text = ""
        self.completed_items: list[tuple[int, Json]] = []  # items that this turn completed, to be recorded

    def write(self, delta: ChatDelta) -> None:
        """Emit one delta."""
        match delta:
            case ToolCallDelta():
                self._write_call(delta)
            case TextDelta():
                self._write_text(delta.text, delta.logprobs, is_reasoning=False)
            case ReasoningDelta():
                self._write_text(delta.text, (), is_reasoning=True)

    def force_image_call(self) -> None:
        """Begin an image call that was required and that the model did not make."""
        call = self._begin_call(IMAGE_FUNCTION, new_id("function_call"))
        if call is not None:
            self.calls[-1] = call

    def close(self, reason: FinishReason) -> None:
        """End the turn."""
        status = "incomplete" if reason == "length" else "completed"
        self._close_text(status)
        for call in self.calls.values():
            if not self._is_image_call(call):
                self._close_call(call, status)

    @property
    def image_calls(self) -> list[ToolCall]:
        """Return the calls of the image tool."""
        return [call for call in self.calls.values() if self._is_image_call(call)]

    @property
    def function_calls(self) -> list[ToolCall]:
        """Return the calls of the client's functions and custom tools."""
        return [call for call in self.calls.values() if not self._is_image_call(call)]

    def _is_image_call(self, call: ToolCall) -> bool:
        return self._hosted and call.name == IMAGE_FUNCTION and call.namespace is None

    def _write_text(self, text: str, tokens: Sequence[TokenLogprob], *, is_reasoning: bool) -> None:
        if self._open is not None and self._open.is_reasoning != is_reasoning:
            self._close_text("completed")
        if self._open is None:
            self._open = self._begin_text(is_reasoning=is_reasoning)
        part = self._open
        part.text += text
        fields: Json = {"item_id": part.item_id, "output_index": part.index, "content_index": 0, "delta": text}
        if is_reasoning:
            self._response.emit("response.reasoning_text.delta", **fields)
            return
        self.text += text
        logprobs = [_logprob(token) for token in tokens] if self._logprobs else []
        part.logprobs += logprobs
        self._response.emit("response.output_text.delta", **fields, logprobs=logprobs)

    def _begin_text(self, *, is_reasoning: bool) -> _Open:
        item_id = new_id("reasoning" if is_reasoning else "message")
        item = reasoning_item(item_id, "in_progress", "") if is_reasoning else message_item(item_id, "in_progress", [])
        index = self._add_item(item)
        if not is_reasoning:
            fields = {"item_id": item_id, "output_index": index, "content_index": 0}
            self._response.emit("response.content_part.added", **fields, part=text_part(""))
        return _Open(index, item_id, is_reasoning)

    def _close_text(self, status: str) -> None:
        part, self._open = self._open, None
        if part is None:
            return
        fields: Json = {"item_id": part.item_id, "output_index": part.index, "content_index": 0}
        if part.is_reasoning:
            self._response.emit("response.reasoning_text.done", **fields, text=part.text)
            self._end_item(part.index, reasoning_item(part.item_id, status, part.text))
            return
        whole = text_part(part.text, part.logprobs)
        self._response.emit("response.output_text.done", **fields, text=part.text, logprobs=part.logprobs)
        self._response.emit("response.content_part.done", **fields, part=whole)
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
        if delta.arguments and not self._is_image_call(call):
            self._write_arguments(call, delta.arguments)

    def _write_arguments(self, call: ToolCall, arguments: str) -> None:
        fields = {"item_id": call.item_id, "output_index": call.index}
        if call.custom is None:
            self._response.emit("response.function_call_arguments.delta", **fields, delta=arguments)
        elif text := call.custom.feed(arguments):
            self._response.emit("response.custom_tool_call_input.delta", **fields, delta=text)

    def _begin_call(self, name: str, call_id: str) -> ToolCall | None:
        """Begin a tool call. None for an image call beyond max_tool_calls, which is ignored."""
        if self._hosted and name == IMAGE_FUNCTION:
            if self._max_image_calls <= len(self.image_calls):
                return None
            item_id = new_id("image_generation_call")
            index = self._add_item(image_item(item_id, "in_progress"))
            fields = {"item_id": item_id, "output_index": index}
            self._response.emit("response.image_generation_call.in_progress", **fields)
            return ToolCall(index, item_id, call_id, name)
        tool = self._called.get(name, CalledTool(name, None, is_custom=False, path="tools"))
        custom = CustomInput() if tool.is_custom else None
        call = ToolCall(
            index=len(self._response.output),
            item_id=new_id("custom_tool_call" if tool.is_custom else "function_call"),
            call_id=call_id,
            name=tool.name,
            namespace=tool.namespace,
            custom=custom,
        )
        self._add_item(_call_item(call, "in_progress"))
        return call

    def _close_call(self, call: ToolCall, status: str) -> None:
        fields = {"item_id": call.item_id, "output_index": call.index}
        if call.custom is None:
            done = {"name": call.name, "arguments": call.arguments}
            self._response.emit("response.function_call_arguments.done", **fields, **done)
        else:
            if text := call.custom.finish():
                self._response.emit("response.custom_tool_call_input.delta", **fields, delta=text)
            self._response.emit("response.custom_tool_call_input.done", **fields, input=call.custom.text)
        self._end_item(call.index, _call_item(call, status))

    def _add_item(self, item: Json) -> int:
        self._response.output.append(item)
        index = len(self._response.output) - 1
        self._response.emit("response.output_item.added", output_index=index, item=item)
        return index

    def _end_item(self, index: int, item: Json) -> None:
        self._response.output[index] = item
        self.completed_items.append((index, item))
        self._response.emit("response.output_item.done", output_index=index, item=item)


def _call_item(call: ToolCall, status: str) -> Json:
    if call.custom is not None:
        return custom_item(call.item_id, status, call.call_id, call.name, call.custom.text, call.namespace)
    return function_item(call.item_id, status, call.call_id, call.name, call.arguments, call.namespace)


def _logprob(token: TokenLogprob) -> Json:
    return {**_top_logprob(token), "top_logprobs": [_top_logprob(top) for top in token.top]}


def _top_logprob(token: TokenLogprob | TopToken) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}
