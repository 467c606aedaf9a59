"""How much another server may send in answer to a chat, so that one that does not end takes no memory from the rest."""

from collections.abc import AsyncIterator
from typing import Final

import httpx

MAX_ANSWER_BYTES: Final = 128 * 1024**2  # in one piece: the texts of any context, and several images
MAX_STREAM_BYTES: Final = 1024**3  # in events, which are passed on as they come
MAX_EVENT_BYTES: Final = 64 * 1024**2  # one event, or a line of it
CHATS: Final = "/chat/completions"  # other answers, which have images, have bounds of their own


class AnswerTooLong(httpx.TransportError):
    """The other server sends more than a chat can have."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"{what} of more than {limit // 1024**2} MiB")


async def bound_answer(response: httpx.Response) -> None:
    """Let the answer of a chat raise AnswerTooLong while it is read, once it is too long: a hook of httpx's client."""
    if response.request.url.path.endswith(CHATS):
        in_events = "event-stream" in response.headers.get("content-type", "")
        limit = MAX_STREAM_BYTES if in_events else MAX_ANSWER_BYTES
        response.stream = _Bounded(response.stream, limit)


class _Bounded(httpx.AsyncByteStream):
    def __init__(self, stream: object, limit: int) -> None:
        assert isinstance(stream, httpx.AsyncByteStream)  # noqa: S101 - an asynchronous client's always is
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for piece in self._stream:
            received += len(piece)
            if received > self._limit:
                raise AnswerTooLong("an answer", self._limit)
            yield piece

    async def aclose(self) -> None:
        """Close the answer."""
        await self._stream.aclose()
