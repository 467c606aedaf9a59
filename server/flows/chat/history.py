"""The messages of a chat completion, with a text for every block that can't be read.

Texts and images in the words of another protocol are read everywhere. Only the user's last message is refused for what
can't be read in it, and the very last one for what is wrong with it: all else was said before, and its client can't
take it back, as little as what a tool returned. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from server.schemas.blocks import (
    as_history,
    as_list,
    check_readable,
    fits,
    image_url_of,
    json_text,
    placeholder_text,
    strict_positions,
    text_of,
    thought_of,
)
from server.schemas.chat_messages import AnyToolCall, AnyUserPart, Message, RefusalPart

Json = dict[str, Any]
USER_PART: TypeAdapter[Any] = TypeAdapter(AnyUserPart)
REFUSAL: TypeAdapter[Any] = TypeAdapter(RefusalPart)
CALL: TypeAdapter[Any] = TypeAdapter(AnyToolCall)
MESSAGE: TypeAdapter[Any] = TypeAdapter(Message)
SAID = ("role", "content", "tool_calls", "tool_call_id")
ROLES = {"system", "developer", "user", "assistant", "tool"}
UNREADABLE = {  # types of parts that clients of this protocol send, and what works in their place
    "file": "no files: send the text of the file, or images of its pages",
    "input_file": "no files: send the text of the file, or images of its pages",
    "document": "no documents: send the text, or images of its pages",
    "input_audio": "no audio: send what was said as text",
    "audio": "no audio: send what was said as text",
    "video_url": "no videos: send single images of it",
    "video": "no videos: send single images of it",
}


class ChatHistory:
    """Reads the messages of one body. `left_out` are the paths of what a text stands for."""

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._calls: dict[str, str] = {}  # the newest call of each function, as older clients send no ids
        self._unanswered: list[str] = []  # ids of calls

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
        if role in {"tool", "function"} and (not strict or self._unanswered):
            message = self._result(message)
            role = "tool"
        if strict and role not in {"user", "tool", "system", "developer"}:
            return message
        if role == "assistant":
            return self._assistant(message, path)
        if role not in ROLES:
            self.left_out.append(f"{path}.role")
            message = {**message, "role": "user"}
        if isinstance(content, str) or (strict and role == "user" and not _has_parts(content)):
            return message
        if role != "user" and isinstance(content, Mapping) and "type" not in content:
            return {**message, "content": json_text(content)}
        listed = as_list(content)
        strict = strict and role != "tool" and not any(map(_is_result, listed))
        parts = [self._part(part, f"{path}.content[{i}]", message, strict) for i, part in enumerate(listed)]
        return {**message, "content": parts or ""}

    def _result(self, message: Json) -> Json:
        """Return the result of a call with the call's id."""
        name, call_id = str(message.get("name")), message.get("tool_call_id")
        if not isinstance(call_id, str) or not call_id:
            call_id = self._calls.get(name) or next(iter(self._unanswered), f"call_{name}")
        if call_id in self._unanswered:
            self._unanswered.remove(call_id)
        return {**message, "role": "tool", "tool_call_id": call_id}

    def _part(self, part: Any, path: str, message: Json, strict: bool) -> Any:
        """Return the part by this protocol's own words, or the text that stands for it."""
        if (text := text_of(part)) is not None:
            return {"type": "text", "text": text}
        shows = message["role"] in {"user", "tool"}
        if shows and (url := image_url_of(part)) is not None:
            detail = part["image_url"].get("detail") if isinstance(part.get("image_url"), Mapping) else None
            known = {"detail": detail} if detail in {"auto", "low", "high"} else {}
            return {"type": "image_url", "image_url": {"url": url, **known}}
        if strict:
            check_readable(part, path, UNREADABLE)
            return part
        if message["role"] == "user" and fits(USER_PART, part):
            return part
        self.left_out.append(path)
        return {"type": "text", "text": placeholder_text(part)}

    def _assistant(self, message: Json, path: str) -> Json:
        """Return an answer of an earlier round. An empty one is one; thoughts among its parts are its reasoning."""
        made = {**message}
        content = message.get("content")
        if isinstance(content, list | Mapping):
            made["content"] = [part for part in self._answer_parts(as_list(content), f"{path}.content") if part]
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

    def _answer_parts(self, parts: Sequence[Any], path: str) -> list[Json | None]:
        made: list[Json | None] = []
        for number, part in enumerate(parts):
            if (text := text_of(part)) is not None:
                made.append({"type": "text", "text": text})
            elif fits(REFUSAL, part):
                made.append(part)
            elif thought_of(part) is not None:
                made.append(None)
            else:
                self.left_out.append(f"{path}[{number}]")
                made.append({"type": "text", "text": placeholder_text(part)})
        return made

    def _all_calls(self, calls: Sequence[Any], path: str) -> Iterator[Any]:
        """Yield the calls with what servers leave out of them: the type, the id, arguments as text. A call without a
        name is left out."""
        for number, call in enumerate(calls):
            made = call
            if isinstance(call, Mapping) and not fits(CALL, call):
                made = {**call, "id": call.get("id") or f"call_{path[9:-1]}_{number}"}
                if isinstance(function := call.get("function"), Mapping):
                    arguments = json_text(function.get("arguments")) or "{}"
                    made |= {"type": "function", "function": {**function, "arguments": arguments}}
            if not fits(CALL, made):
                self.left_out.append(f"{path}.tool_calls[{number}]")
                continue
            self._calls[str(made.get("function", {}).get("name"))] = made["id"]
            self._unanswered.append(made["id"])
            yield made


def _is_result(part: object) -> bool:
    """Return whether a part is what a tool returned, in the words of Anthropic's protocol."""
    return isinstance(part, Mapping) and part.get("type") == "tool_result"


def _has_parts(content: object) -> bool:
    return isinstance(content, list | Mapping) and bool(content)
