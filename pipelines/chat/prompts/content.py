"""What a message says: a text, or parts of text and images. Pure."""

from typing import Any

from pipelines.protocol.chat import join_texts

Content = str | list[dict[str, Any]]
Message = dict[str, Any]


def join(first: Content, second: Content, separator: str = "\n\n") -> Content:
    """Return both contents, one behind the other. Without a separator where one is empty."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return first + separator + second
    between = [{"type": "text", "text": separator}] if separator else []
    return [*as_parts(first), *between, *as_parts(second)]


def with_text(message: Message, text: str) -> Message:
    """Return the message with this text behind what it says."""
    return {**message, "content": join(message["content"], text, separator="\n")}


def as_parts(content: Content) -> list[dict[str, Any]]:
    """Return the content as parts, without two texts side by side. An empty text has none."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    parts: list[dict[str, Any]] = []
    for part in content:
        if parts and part["type"] == parts[-1]["type"] == "text":
            parts[-1] = {"type": "text", "text": join_texts((parts[-1]["text"], part["text"]))}
        else:
            parts.append(part)
    return parts


def as_text(content: Content) -> str:
    """Return the text of the content, without its images."""
    if isinstance(content, str):
        return content
    return join_texts(part["text"] for part in content if part["type"] == "text")
