"""Which images of a chat its model is shown, and where: those that tools return are shown by the user. Pure.

Images are counted in the order of the messages' image_url parts.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipelines.protocol.chat import join_texts
from server.conversation.blocks import unanswered
from server.conversation.turns import MARK
from server.flows.chat.request import MAX_IMAGES, ChatRequest
from server.flows.references import DecodedImage

Json = dict[str, Any]
SHOWN_MARK = {"type": "text", "text": MARK}


def shown_request(request: ChatRequest, *, sees: bool, leave_out: bool) -> tuple[ChatRequest, list[str]]:
    """Return the request with the images that its model is shown, and the paths of the others. A model that does not
    see keeps those of the user's last message, which are then refused, unless the caller or operator allows to leave
    them out; one that sees is shown the newest."""
    count = len(request.images)
    last = last_user_images(request.messages)
    images = tuple(replace(image, past=number not in last) for number, image in enumerate(request.images))
    request = replace(request, images=images)
    if not sees:
        return without_images(request, set(range(count)) - (set() if leave_out else last))
    oldest = [number for number in range(count) if number not in last][: max(0, count - MAX_IMAGES)]
    shown, paths = without_images(request, set(oldest))
    return replace(shown, messages=tuple(with_tool_images_as_user(shown.messages))), paths


def without_images(request: ChatRequest, left_out: Collection[int]) -> tuple[ChatRequest, list[str]]:
    """Return the request with a mark in the place of these images, and their paths."""
    if not left_out:
        return request, []
    kept = tuple(image for number, image in enumerate(request.images) if number not in left_out)
    decoded = tuple(image for number, image in enumerate(request.decoded_images) if number not in left_out)
    paths = [image.field for number, image in enumerate(request.images) if number in left_out]
    messages = tuple(replace_images(request.messages, left_out))
    return replace(request, messages=messages, images=kept, decoded_images=decoded), paths


def loaded_request(request: ChatRequest, loaded: Sequence[DecodedImage | None]) -> tuple[ChatRequest, list[str]]:
    """Return the request with the pixels of its images, and the paths of those that could not be loaded."""
    lost = {number for number, image in enumerate(loaded) if image is None}
    kept, paths = without_images(request, lost)
    return replace(kept, decoded_images=tuple(image.image for image in loaded if image is not None)), paths


def replace_images(messages: Iterable[Mapping[str, Any]], left_out: Collection[int]) -> Iterator[Json]:
    """Yield the messages with a mark in the place of these images."""
    number = -1
    for message in messages:
        if isinstance(content := message.get("content"), list):
            parts = []
            for part in content:
                number += _is_image(part)
                parts.append(SHOWN_MARK if _is_image(part) and number in left_out else part)
            message = {**message, "content": parts}
        yield dict(message)


def last_user_images(messages: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the numbers of the images in the user's last message, if it waits for an answer. One that follows results
    of tools shows theirs."""
    roles = [message.get("role") for message in messages]
    spoken = unanswered([role == "user" for role in roles], [role == "assistant" for role in roles])
    counts = [sum(map(_is_image, _parts(message))) for message in messages]
    if not spoken or (spoken[0] and roles[spoken[0] - 1] == "tool"):
        return set()
    before = sum(counts[: spoken[0]])
    return set(range(before, before + counts[spoken[0]]))


def with_tool_images_as_user(messages: Iterable[Mapping[str, Any]]) -> Iterator[Json]:
    """Yield the messages with the images of tools in a user's message after them: most templates and servers take
    results of tools as text alone."""
    held: list[Any] = []
    for message in messages:
        if held and message.get("role") == "user":
            content = message.get("content")
            own = content if isinstance(content, list) else [{"type": "text", "text": content}]
            message, held = {**message, "content": [*held, *own]}, []
        elif held and message.get("role") != "tool":
            yield {"role": "user", "content": held}
            held = []
        if message.get("role") == "tool" and any(map(_is_image, _parts(message))):
            held = [*held, *filter(_is_image, _parts(message))]
            message = {**message, "content": _text(_parts(message))}
        yield dict(message)
    if held:
        yield {"role": "user", "content": held}


def _text(parts: Iterable[Any]) -> str:
    """Return the text of a result whose images are shown elsewhere."""
    return join_texts(part["text"] for part in parts if not _is_image(part)) or MARK


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else ()


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"
