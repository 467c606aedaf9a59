"""The drawing that a conversation asks for: the last thing that the user said, from the images since the last one
drawn. Earlier images are `past`: the drawing goes on without those that can't be loaded any more."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from server.backends.storage import NAME
from server.errors import BadRequest
from server.flows.references import Reference
from server.schemas.chat_messages import AssistantMessage, ImagePart, SystemMessage, TextPart, ToolMessage, UserMessage

ChatMessage = SystemMessage | UserMessage | AssistantMessage | ToolMessage
MARKDOWN_LINK = re.compile(r"\[[^\[\]]*\]\(\s*<?([^\s<>()]+)>?(?:\s[^()]*)?\)")  # linear in long texts
DATA_URI = re.compile(r"data:image/[a-z+.-]+;base64,", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Drawing:
    """The prompt and the references of an image call, and the fields of the texts that it leaves out."""

    prompt: str
    references: tuple[Reference, ...]
    unread: tuple[str, ...]


def read_conversation(messages: Sequence[ChatMessage], max_references: int) -> Drawing:
    """Read a conversation for an image model. The images of the last message come first, then earlier ones, newest
    first, up to and including the last that was drawn. Of those of earlier messages, as many as the model takes. Raises
    BadRequest for a conversation that does not end with the user.

    Image models read one text, so earlier texts are left out: their outcome is in the images.
    """
    last = len(messages) - 1
    message = messages[last] if messages else None
    if not isinstance(message, UserMessage):
        text = "An image model draws what the user says last: end 'messages' with a message of the user."
        raise BadRequest(text, param="messages")
    references = list(_images(message, last))
    for index in range(last - 1, -1, -1):
        earlier = messages[index]
        room = max(0, max_references - len(references))
        found = [replace(image, past=True) for image in _images(earlier, index)]
        references += found[:room]
        if isinstance(earlier, AssistantMessage) and found:
            break
    unread = tuple(f"messages[{i}]" for i, one in enumerate(messages) if isinstance(one, SystemMessage))
    return Drawing(_text(message), tuple(references), unread)


def drawn_images(message: AssistantMessage, index: int) -> list[Reference]:
    """Return the images of an earlier answer: its `images`; or, as some clients keep only the text, those that the
    text links. Of a result of this server only the name is kept, so that no link in a text is ever fetched."""
    if message.images:
        parts = enumerate(message.images)
        return [Reference(f"messages[{index}].images[{i}].image_url", part.image_url.url) for i, part in parts]
    links = (found[1] for found in MARKDOWN_LINK.finditer(text_of(message.content or "")))
    sources = (link if DATA_URI.match(link) else link.partition("?")[0].rpartition("/")[2] for link in links)
    kept = dict.fromkeys(source for source in sources if DATA_URI.match(source) or NAME.fullmatch(source))
    return [Reference(f"messages[{index}].content", source) for source in kept]


def text_of(content: str | Sequence[Any]) -> str:
    """Return the texts of a message's content, a line each."""
    if isinstance(content, str):
        return content
    return "\n".join(str(getattr(part, "text", None) or getattr(part, "refusal", "")) for part in content)


def _text(message: UserMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text for part in message.content if isinstance(part, TextPart))


def _images(message: ChatMessage, index: int) -> Iterator[Reference]:
    if isinstance(message, AssistantMessage):
        yield from drawn_images(message, index)
    elif isinstance(message, UserMessage) and isinstance(message.content, list):
        for position, user_part in enumerate(message.content):
            if isinstance(user_part, ImagePart):
                field = f"messages[{index}].content[{position}].image_url"
                yield Reference(field, user_part.image_url.url)
