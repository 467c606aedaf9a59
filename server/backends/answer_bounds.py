"""How much another server may send in answer to a chat, so that one that does not end takes no memory from the rest."""

from collections.abc import AsyncIterator
from typing import Final

import httpx

MAX_ANSWER_BYTES: Final = 128 * 1024**2  # in one piece: the texts of any context, and several images
MAX_ERROR_BYTES: Final = 1024**2  # of an answer that is no success
MAX_STREAM_BYTES: Final = 1024**3  # in events, which are passed on as they come
MAX_EVENT_BYTES: Final = 64 * 1024**2  # one event, or a line of it
CHATS: Final = "/chat/completions"  # other answers, which have images, have bounds of their own


class AnswerTooLong(httpx.TransportError):
    """The other server sends more than a chat can have."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"{what} of more than {limit // 1024**2} MiB")


class CompressedAnswer(AnswerTooLong):
    """The other server compresses its answer, so that a small one may be of any length."""

    def __init__(self) -> None:
        httpx.TransportError.__init__(self, "a compressed answer, though it was asked for a plain one")


async def bound_answer(response: httpx.Response) -> None:
    """Let the answer of a chat raise AnswerTooLong while it is read, once it is too long: a hook of httpx's client.
    Raises CompressedAnswer."""
    if response.request.url.path.endswith(CHATS):
        if response.headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
            raise CompressedAnswer
        in_events = "event-stream" in response.headers.get("content-type", "")
        limit = MAX_STREAM_BYTES if in_events else MAX_ANSWER_BYTES
        limit = limit if response.is_success else MAX_ERROR_BYTES
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
