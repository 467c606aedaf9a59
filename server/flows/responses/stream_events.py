"""From the deltas of a chat model to output items and stream events. One writer for each turn of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.protocol.chat import (
    ChatDelta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    TopToken,
)
from server.flows.chat.custom_tools import CustomInput
from server.flows.responses.items import new_id, write_summary
from server.flows.responses.tools import IMAGE_FUNCTION, CalledTool
from server.schemas.response_answers import (
    CustomToolCall,
    FunctionCall,
    ImageCall,
    ItemStatus,
    OutputItem,
    TopTokenLogprob,
    message_item,
    reasoning_item,
    text_part,
)
from server.schemas.response_answers import TokenLogprob as SentLogprob
from server.schemas.response_events import PartPlace
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
    logprobs: list[SentLogprob] = field(default_factory=list)


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
        encrypted: bool = False,  # thoughts come as `encrypted_content`, too
    ) -> None:
        self._response = response
        self._called = called
        self._hosted = hosted
        self._max_image_calls = max_image_calls
        self._logprobs = logprobs
        self._encrypted = encrypted
        self._open: _Open | None = None
        self.calls: dict[int, ToolCall] = {}
        self.text = ""
        self.completed_items: list[tuple[int, OutputItem]] = []  # items that this turn completed, to be recorded

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
        status: ItemStatus = "incomplete" if reason == "length" else "completed"
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
        place = self._place(part)
        if is_reasoning:
            self._response.emit({"type": "response.reasoning_text.delta", **place, "delta": text})
            return
        self.text += text
        logprobs: list[SentLogprob] = []
        for token in tokens if self._logprobs else ():
            logprobs.append({**_top_logprob(token), "top_logprobs": [_top_logprob(top) for top in token.top]})
        part.logprobs += logprobs
        self._response.emit({"type": "response.output_text.delta", **place, "delta": text, "logprobs": logprobs})

    def _begin_text(self, *, is_reasoning: bool) -> _Open:
        item_id = new_id("reasoning" if is_reasoning else "message")
        if is_reasoning:
            return _Open(self._add_item(reasoning_item(item_id, "in_progress", "")), item_id, is_reasoning)
        part = _Open(self._add_item(message_item(item_id, "in_progress", [])), item_id, is_reasoning)
        self._response.emit({"type": "response.content_part.added", **self._place(part), "part": text_part("")})
        return part

    def _place(self, part: _Open) -> PartPlace:
        return {**self._response.place(part.item_id, part.index), "content_index": 0}

    def _close_text(self, status: ItemStatus) -> None:
        part, self._open = self._open, None
        if part is None:
            return
        place = self._place(part)
        if part.is_reasoning:
            self._response.emit({"type": "response.reasoning_text.done", **place, "text": part.text})
            item = reasoning_item(part.item_id, status, part.text)
            if self._encrypted:
                item["encrypted_content"] = write_summary(part.text)
            self._end_item(part.index, item)
            return
        whole = text_part(part.text, part.logprobs)
        logprobs = part.logprobs
        self._response.emit({"type": "response.output_text.done", **place, "text": part.text, "logprobs": logprobs})
        self._response.emit({"type": "response.content_part.done", **self._place(part), "part": whole})
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
        place = self._response.place(call.item_id, call.index)
        if call.custom is None:
            self._response.emit({"type": "response.function_call_arguments.delta", **place, "delta": arguments})
        elif text := call.custom.feed(arguments):
            self._response.emit({"type": "response.custom_tool_call_input.delta", **place, "delta": text})

    def _begin_call(self, name: str, call_id: str) -> ToolCall | None:
        """Begin a tool call. None for an image call beyond max_tool_calls, which is ignored."""
        if self._hosted and name == IMAGE_FUNCTION:
            if self._max_image_calls <= len(self.image_calls):
                return None
            item_id = new_id("image_generation_call")
            item = ImageCall(id=item_id, type="image_generation_call", status="in_progress", result=None)
            index = self._add_item(item)
            place = self._response.place(item_id, index)
            self._response.emit({"type": "response.image_generation_call.in_progress", **place})
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

    def _close_call(self, call: ToolCall, status: ItemStatus) -> None:
        if call.custom is not None and (text := call.custom.finish()):
            place = self._response.place(call.item_id, call.index)
            self._response.emit({"type": "response.custom_tool_call_input.delta", **place, "delta": text})
        place = self._response.place(call.item_id, call.index)
        if call.custom is not None:
            self._response.emit({"type": "response.custom_tool_call_input.done", **place, "input": call.custom.text})
        else:
            name, arguments = call.name, call.arguments
            self._response.emit(
                {"type": "response.function_call_arguments.done", **place, "name": name, "arguments": arguments}
            )
        self._end_item(call.index, _call_item(call, status))

    def _add_item(self, item: OutputItem) -> int:
        self._response.output.append(item)
        index = len(self._response.output) - 1
        self._response.emit_item("response.output_item.added", index, item)
        return index

    def _end_item(self, index: int, item: OutputItem) -> None:
        self._response.output[index] = item
        self.completed_items.append((index, item))
        self._response.emit_item("response.output_item.done", index, item)


def _call_item(call: ToolCall, status: ItemStatus) -> FunctionCall | CustomToolCall:
    item_id, call_id, name = call.item_id, call.call_id, call.name
    item: FunctionCall | CustomToolCall
    if call.custom is not None:
        item = CustomToolCall(
            id=item_id, type="custom_tool_call", status=status, call_id=call_id, name=name, input=call.custom.text
        )
    else:
        item = FunctionCall(
            id=item_id, type="function_call", status=status, call_id=call_id, name=name, arguments=call.arguments
        )
    if call.namespace is not None:
        item["namespace"] = call.namespace
    return item


def _top_logprob(token: TokenLogprob | TopToken) -> TopTokenLogprob:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}
