"""The conversation of a chat completion.

`ChatHistory` brings messages that other servers and clients have written to into this protocol's own words: only the
user's last message is refused for what can't be read in it, and the very last one for what is wrong with it. All else
was said before, and its client can't take it back, as little as what a tool returned. `read_turns` reads the valid
messages. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from server.conversation.blocks import as_history, as_list, fits, json_text, strict_positions, text_of, thought_of
from server.conversation.own_words import OwnWords, detail_of, typed
from server.conversation.turns import Block, Call, CallIds, Image, Result, Turn
from server.flows.references import Reference
from server.schemas.chat_messages import (
    AnyAssistantPart,
    AnyTextPart,
    AnyToolCall,
    AnyUserPart,
    AssistantMessage,
    ImagePart,
    Message,
    RefusalPart,
    TextPart,
    ToolCall,
    ToolMessage,
    custom_arguments,
)

Json = dict[str, Any]
CALL: TypeAdapter[Any] = TypeAdapter(AnyToolCall)
MESSAGE: TypeAdapter[Any] = TypeAdapter(Message)
SAID = ("role", "content", "tool_calls", "tool_call_id")
DETAILS = frozenset({"auto", "low", "high"})
TEXTS = OwnWords(AnyTextPart, typed("text"))
SHOWN = OwnWords(
    AnyUserPart,
    typed("text"),
    lambda url, sent: {"type": "image_url", "image_url": {"url": url, **detail_of(sent, DETAILS)}},
)
WORDS = {  # by the role
    "system": TEXTS,
    "developer": TEXTS,
    "user": SHOWN,
    "assistant": OwnWords(AnyAssistantPart, typed("text")),
    "tool": SHOWN,
}


class ChatHistory:
    """Reads the messages of one body. `left_out` are the paths of what a text stands for."""

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._ids = CallIds()

    def read(self, messages: object) -> object:
        """Return the messages. What is no list of objects is left to the validation. Raises BadRequest for a part of
        the user's last message that no chat model here reads."""
        if (history := as_history(messages)) is None:
            return messages
        roles = [message.get("role") for message in history]
        strict = strict_positions([role == "user" for role in roles], [role == "assistant" for role in roles])
        return [self._message(message, index, strict=index in strict) for index, message in enumerate(history)]

    def _message(self, message: Json, index: int, *, strict: bool) -> Json:
        """Return the message; if it has a fault that no block explains, what it says and calls, or its texts alone."""
        made = self._read(message, f"messages[{index}]", strict=strict)
        if strict or fits(MESSAGE, made):
            return made
        self.left_out.append(f"messages[{index}]")
        said = {name: made[name] for name in SAID if name in made}
        if fits(MESSAGE, said):
            return said
        texts = [text_of(part) or "" for part in as_list(made.get("content"))]
        answers = {"tool_call_id": str(made.get("tool_call_id"))} if made["role"] == "tool" else {}
        return {"role": made["role"], **answers, "content": "\n".join(texts)}

    def _read(self, message: Json, path: str, *, strict: bool) -> Json:
        role, content = message.get("role"), message.get("content")
        if role in {"tool", "function"} and (not strict or self._ids.waiting):
            call_id = message.get("tool_call_id")
            known = call_id if isinstance(call_id, str) else None
            role, message = "tool", {**message, "tool_call_id": self._ids.answered(known, str(message.get("name")))}
            message["role"] = role
        if strict and role not in {"user", "tool", "system", "developer"}:
            return message
        if role == "assistant":
            return self._assistant(message, path)
        if role not in WORDS:
            self.left_out.append(f"{path}.role")
            role, message = "user", {**message, "role": "user"}
        if isinstance(content, str) or (strict and role == "user" and not _has_parts(content)):
            return message
        if role != "user" and isinstance(content, Mapping) and "type" not in content:
            return {**message, "content": json_text(content)}
        listed = as_list(content)
        strict = strict and role != "tool" and not any(map(_is_result, listed))
        read = WORDS[role].read_all(listed, f"{path}.content", self.left_out, strict=strict)
        return {**message, "content": read or ""}

    def _assistant(self, message: Json, path: str) -> Json:
        """Return an answer of an earlier round. An empty one is one; thoughts among its parts are its reasoning."""
        made = {**message}
        content = message.get("content")
        if isinstance(content, list | Mapping):
            made["content"] = [
                WORDS["assistant"].read(part, f"{path}.content[{number}]", self.left_out)
                for number, part in enumerate(as_list(content))
                if thought_of(part) is None
            ]
            thoughts = [thought for part in as_list(content) if (thought := thought_of(part))]
            if thoughts and not message.get("reasoning_content"):
                made["reasoning_content"] = "\n".join(thoughts)
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            made["tool_calls"] = list(self._all_calls(calls, path))
        old = made.pop("function_call", None)
        if isinstance(old, Mapping) and not made.get("tool_calls"):
            made["tool_calls"] = list(self._all_calls([{"function": old}], path))
        if not made.get("content"):
            made["content"] = None if made.get("tool_calls") or made.get("refusal") else ""
        if made.pop("audio", None) is not None:
            self.left_out.append(f"{path}.audio")
        return made

    def _all_calls(self, calls: Sequence[Any], path: str) -> Iterator[Any]:
        """Yield the calls with what servers leave out of them: the type, the id, arguments as text. A call without a
        name is left out."""
        for number, call in enumerate(calls):
            named = isinstance(call, Mapping) and bool(call.get("id"))
            made = call if named or not isinstance(call, Mapping) else {**call, "id": "?"}
            if isinstance(call, Mapping) and not fits(CALL, made) and isinstance(call.get("function"), Mapping):
                arguments = json_text(call["function"].get("arguments")) or "{}"
                made = {**made, "type": "function", "function": {**call["function"], "arguments": arguments}}
            if not fits(CALL, made):
                self.left_out.append(f"{path}.tool_calls[{number}]")
                continue
            function: Json = made.get("function") or made["custom"]
            yield {**made, "id": self._ids.called(made["id"] if named else None, function["name"])}


def _is_result(part: object) -> bool:
    """Return whether a part is what a tool returned, in the words of Anthropic's protocol."""
    return isinstance(part, Mapping) and part.get("type") == "tool_result"


def _has_parts(content: object) -> bool:
    return isinstance(content, list | Mapping) and bool(content)


def read_turns(messages: Iterable[Message]) -> Iterator[Turn | Result]:
    """Yield the turns and results that valid messages are. The origin of an image is its reference."""
    for index, message in enumerate(messages):
        blocks = list(_blocks(message.content, f"messages[{index}].content"))
        if isinstance(message, ToolMessage):
            yield Result(blocks, message.tool_call_id)
        elif isinstance(message, AssistantMessage):
            blocks = blocks or ([message.refusal] if message.refusal else [])
            blocks += [Image("") for _ in message.images or ()]
            thoughts = message.reasoning_content or message.reasoning
            calls = [_call(call) for call in message.tool_calls or ()]
            yield Turn("assistant", blocks, (thoughts,) if thoughts else (), calls, message.name)
        else:
            yield Turn(message.role, blocks, name=message.name)


def _blocks(content: Any, path: str) -> Iterator[Block]:
    for number, part in enumerate([content] if isinstance(content, str) else content or ()):
        if isinstance(part, ImagePart):
            yield Image("", Reference(f"{path}[{number}].image_url", part.image_url.url))
        else:
            yield part.text if isinstance(part, TextPart) else part.refusal if isinstance(part, RefusalPart) else part


def _call(call: Any) -> Call:
    if isinstance(call, ToolCall):
        return Call(call.function.name, call.function.arguments, call.id)
    return Call(call.custom.name, custom_arguments(call.custom.input), call.id)
