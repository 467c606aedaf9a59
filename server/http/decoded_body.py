"""Bodies that come compressed, decompressed piece by piece: the decompressed size is limited as that of plain bodies
is."""

import zlib

from starlette.types import Message, Receive

from server.errors import BadRequest, TooLarge
from server.flows.references import MAX_FILE_BYTES
from server.schemas.images import MAX_REFERENCES
from server.state.body_budget import FREE_BYTES, BodyLease

MIB = 1024**2
FORM_PATH = "/v1/images/edits"
MAX_FORM_BYTES = (MAX_REFERENCES + 1) * MAX_FILE_BYTES + 8 * MIB  # the references, a mask, and the other fields
DECODED = ("gzip", "deflate")  # values of Content-Encoding
ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS  # found by the header
PIECE_BYTES = 64 * 1024  # of a message: much less than a bomb grows to, and quick on the event loop


class DecodedBody:
    """One body. Its messages are those of a body that was not compressed."""

    def __init__(self, receive: Receive, lease: BodyLease, limit: int) -> None:
        self._receive = receive
        self._lease = lease
        self._limit = limit
        self._decoder = zlib.decompressobj(ZLIB_OR_GZIP)
        self._compressed = b""
        self._more = True  # of the compressed body
        self._decoded_bytes = 0

    async def receive(self) -> Message:
        """Return the next message, decompressed. Raises TooLarge, BadRequest, and the errors of reading and of the
        lease."""
        if not self._more and not self._compressed:
            return await self._receive()
        if not self._compressed:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._compressed, self._more = message.get("body", b""), message.get("more_body", False)
        piece = self._decompress()
        self._decoded_bytes += len(piece)
        limit = self._limit if self._lease.begun else FREE_BYTES
        if self._decoded_bytes > limit:
            raise too_large(limit)
        await self._lease.extend(self._decoded_bytes)
        more = self._more or bool(self._compressed)
        if not more and not self._decoder.eof:
            raise BadRequest("The body of your request could not be decompressed: it ends too early.")
        return {"type": "http.request", "body": piece, "more_body": more}

    def _decompress(self) -> bytes:
        try:
            piece = self._decoder.decompress(self._compressed, PIECE_BYTES)
        except zlib.error as error:
            raise BadRequest(f"The body of your request could not be decompressed: {error}.") from error
        self._compressed = self._decoder.unconsumed_tail
        if self._decoder.eof and (self._compressed or self._decoder.unused_data):
            raise BadRequest("The body of your request could not be decompressed: something follows its end.")
        return piece


def too_large(limit: int) -> TooLarge:
    """Return the error of a body of more than `limit` bytes."""
    if limit < MIB:
        return TooLarge(f"The request body is larger than {limit // 1024} KiB.")
    where = "" if limit == MAX_FORM_BYTES else f", or send them as files to {FORM_PATH}, which takes more"
    return TooLarge(f"The request body is larger than {limit // MIB} MiB. Send fewer or smaller images{where}.")
