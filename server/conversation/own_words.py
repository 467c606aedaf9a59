"""The blocks of a message in its protocol's own words, with a text for each that can't be read. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter

from server.conversation.blocks import (
    as_list,
    check_readable,
    fits,
    image_url_of,
    json_text,
    placeholder_text,
    text_of,
)

Json = dict[str, Any]


class OwnWords:
    """How one kind of message has its blocks in a protocol: what is valid there, and how it writes texts and images."""

    def __init__(
        self, blocks: Any, text: Callable[[str], Json], image: Callable[[str, Mapping[str, Any]], Json] | None = None
    ) -> None:
        self._valid = TypeAdapter[Any](blocks)
        self._text = text
        self._image = image  # of its URL and the block that was sent; None where there are no images

    def read(self, sent: Any, path: str, left_out: list[str], *, strict: bool = False) -> Any:
        """Return a block in the protocol's own words. Where a text must stand for it, its path is added to `left_out`.
        A `strict` one is left to the validation then, or refused. Raises BadRequest."""
        if fits(self._valid, sent):
            return sent
        made = self._translated(sent)
        if fits(self._valid, made):
            return made
        if strict:
            check_readable(sent, path)
            return made
        left_out.append(path)
        return self._text(placeholder_text(sent))

    def read_all(self, content: object, path: str, left_out: list[str], *, strict: bool = False) -> list[Any]:
        """Return the blocks of a content likewise."""
        blocks = enumerate(as_list(content))
        return [self.read(each, f"{path}[{number}]", left_out, strict=strict) for number, each in blocks]

    def read_result(self, content: object, path: str, left_out: list[str]) -> Any:
        """Return what a tool returned, which is never refused: a text, or blocks. An object is its JSON."""
        if isinstance(content, str) or content is None or (isinstance(content, Mapping) and "type" not in content):
            return json_text(content)
        return self.read_all(content, path, left_out) or ""

    def _translated(self, sent: Any) -> Any:
        """Return a text or an image of another protocol in this one's words."""
        if (text := text_of(sent)) is not None:
            return self._text(text)
        url = image_url_of(sent)
        return self._image(url, sent) if url is not None and self._image is not None else sent


def typed(kind: str) -> Callable[[str], Json]:
    """Return how a protocol writes a text whose blocks have a type."""
    return lambda text: {"type": kind, "text": text}


def detail_of(block: Mapping[str, Any], known: frozenset[str]) -> Json:
    """Return the detail of an image as a field, if it is one that is known."""
    inner = block.get("image_url")
    detail = block.get("detail") or (inner.get("detail") if isinstance(inner, Mapping) else None)
    return {"detail": detail} if detail in known else {}
