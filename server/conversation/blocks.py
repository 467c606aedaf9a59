"""The blocks of messages in the words of every protocol: which are texts, which are images, and what stands for those
that can't be read here. Pure.

Clients send whole conversations again, so a block that is refused once would end its session. What stands before the
user's last message is never refused: a short text stands for what can't be read, and its path is named.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pipelines.protocol.chat import join_texts
from server.errors import BadRequest

Json = dict[str, Any]
TEXTS = {"text", "refusal", "input_text", "output_text", "summary_text", "reasoning_text"}
IMAGES = {"image_url", "input_image", "image"}
THOUGHTS = {"thinking", "reasoning"}
KINDS = {  # of blocks, as their marks call them; others are called by their type
    "input_file": "file",
    "document": "file",
    "input_audio": "audio",
    "input_video": "video",
    "video_url": "video",
    "image_url": "image",
    "input_image": "image",
    "server_tool_use": "tool",
    "mcp_tool_use": "tool",
    "tool_reference": "tool",
    "container_upload": "file",
}
UNREADABLE = {  # kinds of blocks that no chat model here reads, and what works in their place
    "file": "no files: send the text of the file, or images of its pages",
    "audio": "no audio: send what was said as text",
    "video": "no videos: send single images of it",
    "search_result": "no search results: send their text",
}
NAMES = ("filename", "title", "tool_name", "name", "file_id", "source")  # the first that is a short text
READABLE = ("text", "transcript", "context", "content", "source", "stdout", "stderr", "logs", "output", "code")
MAX_NAME = 100
MAX_READ = 100_000  # characters of text in a block that is no text


def as_history(messages: object) -> list[Json] | None:
    """Return the messages if they are a list of objects, else None: that is left to the validation."""
    return messages if isinstance(messages, list) and all(isinstance(each, dict) for each in messages) else None


def strict_positions(by_user: Sequence[bool], by_model: Sequence[bool]) -> set[int]:
    """Return the positions of the messages whose faults are refused: the very last one, and the one that waits for an
    answer. The two say of each message who said it."""
    return {*range(len(by_user))[-1:], *unanswered(by_user, by_model)}


def unanswered(by_user: Sequence[bool], by_model: Sequence[bool]) -> list[int]:
    """Return the position of the user's last message, or nothing if a model has begun to answer it: that one could
    read it, and an agent sends it again with each result of a tool."""
    spoken = [index for index, is_users in enumerate(by_user) if is_users][-1:]
    return [index for index in spoken if not any(by_model[index:])]


def is_answer(item: Mapping[str, Any]) -> bool:
    """Return whether a model has said an item of a response. Clients send an image's call as an input of the user's."""
    kind = str(item.get("type"))
    calls = kind.endswith("_call") and kind != "image_generation_call"
    return item.get("role") == "assistant" or kind == "reasoning" or calls


def check_readable(block: object, path: str) -> None:
    """Refuse a block of a kind that no chat model here reads. Raises BadRequest."""
    if isinstance(block, Mapping) and (message := unreadable_text(block)):
        source = block.get("source")
        at = ".source.type" if isinstance(source, Mapping) and "type" in source else ".type"
        raise BadRequest(message, param=path + at, code="invalid_value")


def unreadable_text(block: Mapping[str, Any]) -> str | None:
    """Return why a block can't be read, and what works in its place; None for a kind that is not known."""
    kind = str(block.get("type"))
    works = UNREADABLE.get(KINDS.get(kind, kind))
    return f"'{kind}' can't be read: this server's chat models read {works}." if works else None


def as_list(content: object) -> list[Any]:
    """Return the blocks of a content: null and an empty text have none, a single block is one."""
    if isinstance(content, list):
        return content
    if content is None or content == "":
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else [content]


def text_of(block: object) -> str | None:
    """Return the text of a block that is one in any protocol, or of a bare string: a refusal is one, and a document
    whose text is in it. None for other blocks."""
    if isinstance(block, str):
        return block
    if not isinstance(block, Mapping):
        return None
    kind = block.get("type", "text")
    if kind == "document":
        return _document_text(block)
    text = block.get("refusal" if kind == "refusal" else "text") if kind in TEXTS else None
    return text if isinstance(text, str) else None


def _document_text(block: Mapping[str, Any]) -> str | None:
    """Return the title, the context and the text of a document; None for one that is bytes or elsewhere."""
    source = block.get("source")
    if not isinstance(source, Mapping) or source.get("type") not in {"text", "content"}:
        return None
    inner = source.get("data") if source["type"] == "text" else source.get("content")
    texts = [block.get("title"), block.get("context"), *map(text_of, as_list(inner))]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def image_url_of(block: object) -> str | None:
    """Return the URL or data URI of a block that is an image in any protocol; None for other blocks."""
    if not isinstance(block, Mapping) or block.get("type") not in IMAGES:
        return None
    url, source = block.get("image_url"), block.get("source")
    if isinstance(url, Mapping):
        url = url.get("url")
    if url is None and isinstance(source, Mapping):
        url = source.get("url")
        if source.get("type") == "base64" and isinstance(source.get("data"), str):
            url = f"data:{source.get('media_type') or 'image/png'};base64,{source['data']}"
    return url if isinstance(url, str) and url else None


def thought_of(block: object) -> str | None:
    """Return the thinking text of a block that has it; None for other blocks."""
    if not isinstance(block, Mapping) or block.get("type") not in THOUGHTS:
        return None
    content = block.get("thinking") or block.get("text") or block.get("content") or block.get("summary")
    return join_texts(text for part in as_list(content) if (text := text_of(part)))


def placeholder_text(block: object) -> str:
    """Return the text that stands for a block that can't be read: its kind, its name if it has one, and the text in
    it."""
    if not isinstance(block, Mapping):
        return "[block]"
    kind = str(block.get("type") or "block")[:MAX_NAME]
    head = f"[{KINDS.get(kind, kind)}{f': {name}' if (name := _name(block)) else ''}]"
    read = _read(block)[:MAX_READ]
    return f"{head}\n{read}" if read else head


def json_text(value: object) -> str:
    """Return a value as the text that a model reads. Texts stay as they are, null is empty."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def fits(adapter: TypeAdapter[Any], value: object) -> bool:
    """Return whether a value is valid."""
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _name(block: Mapping[str, Any]) -> str | None:
    for holder in (each for each in (block, block.get("file"), block.get("source")) if isinstance(each, Mapping)):
        for name in NAMES:
            value = holder.get(name)
            if isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable():
                return value
    return None


def _read(block: Mapping[str, Any]) -> str:
    """Return the texts inside a block, such as those of a search result. Bytes and what is encrypted are none."""
    found = []
    for name in READABLE:
        value = block.get(name)
        if isinstance(value, Mapping) and name in {"source", "content", "output"}:
            found.append(_source_text(value))
        elif isinstance(value, list):
            found += _list_texts(value)
        elif isinstance(value, str) and name != "source":
            found.append(value)
    return "\n".join(text for text in found if text)


def _source_text(source: Mapping[str, Any]) -> str:
    """Return the text of a document's source, unless it is bytes."""
    if source.get("type") == "text" and isinstance(source.get("data"), str):
        return str(source["data"])
    return "" if source.get("type") in {"base64", "url", "file"} else _read(source)


def _list_texts(parts: Iterable[object]) -> list[str]:
    texts = []
    for part in parts:
        if (text := text_of(part)) is not None:
            texts.append(text)
        elif isinstance(part, Mapping):
            link = [str(part[name]) for name in ("title", "url") if isinstance(part.get(name), str)]
            texts.append(" ".join(link) or _read(part))
    return texts
