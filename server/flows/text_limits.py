"""The words in a request, and how many there may be."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from server.errors import BadRequest
from server.schemas.chat_messages import MAX_TEXT


def strings_of(value: Any) -> Iterator[str]:
    """Every string of a JSON value, and the names that its objects have. However deep: callers nest as they like."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            for name, inner in reversed(list(part.items())):
                waiting += [inner, name]
        elif isinstance(part, list | tuple):
            waiting += reversed(part)


def check_length(texts: Iterable[str]) -> None:
    """Raises BadRequest for more text than any model here reads, before somebody spends minutes on it."""
    if (length := sum(map(len, texts))) > MAX_TEXT:
        message = f"The texts of this request have {length} characters together. Expected at most {MAX_TEXT}."
        raise BadRequest(message, code="string_above_max_length")
