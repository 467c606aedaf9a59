"""Reference images: from a URL, a data URI or a file part to upright pixels.

A URL of one of this server's own results is read from storage and never from the network, so a chain of calls works
without internet access.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pipelines.protocol.images import Picture
from server.accounts.ledger import Ledger
from server.backends.fetch import FetchFailed, FetchRefused, FetchTooLarge, fetch_image
from server.backends.image_decoding import DecodedPicture, PictureError, decode_data_uri, decode_mask, decode_picture
from server.backends.storage import Storage
from server.errors import ApiError, BadImageRequest, BadRequest, TooLarge

MAX_FILE_BYTES = 50 * 1024**2
MAX_FIRST_PX = 8_300_000  # the largest output of any tier
MAX_OTHER_PX = 1_850_000  # further references only condition; no pipeline reads them larger than this


@dataclass(frozen=True, slots=True)
class Reference:
    """A picture as it was sent: text is a URL or data URI, bytes are a file. `field` is the `param` of errors."""

    field: str
    source: str | bytes


class ReferenceLoader:
    """Reads and decodes references. `fetch` allows downloads from other servers."""

    def __init__(self, ledger: Ledger, storage: Storage, *, fetch: bool, fetch_timeout_s: float) -> None:
        self._ledger = ledger
        self._storage = storage
        self._fetch = fetch
        self._fetch_timeout_s = fetch_timeout_s

    async def load(self, references: Sequence[Reference]) -> tuple[DecodedPicture, ...]:
        """All references, decoded. Raises ApiError for the first that can't be used."""
        return tuple([await self._load_one(item, is_first=i == 0) for i, item in enumerate(references)])

    async def load_mask(self, mask: Reference | None, first_reference: DecodedPicture | None) -> Picture | None:
        """The mask as "L" pixels in the size of the first reference, 255 where to paint. Raises ApiError."""
        if mask is None:
            return None
        if first_reference is None:
            raise BadRequest("A mask needs a reference image to paint on: send 'image' too.", param="mask")
        raw = await self._read(mask)
        original = (first_reference.original_width_px, first_reference.original_height_px)
        target = (first_reference.picture.width_px, first_reference.picture.height_px)
        try:
            return await asyncio.to_thread(decode_mask, raw, original, target)
        except PictureError as error:
            raise _to_api_error(error, "mask") from error

    async def _load_one(self, reference: Reference, *, is_first: bool) -> DecodedPicture:
        raw = await self._read(reference)
        try:
            return await asyncio.to_thread(decode_picture, raw, MAX_FIRST_PX if is_first else MAX_OTHER_PX)
        except PictureError as error:
            raise _to_api_error(error, reference.field) from error

    async def _read(self, reference: Reference) -> bytes:
        if isinstance(reference.source, bytes):
            raw = reference.source
        elif reference.source[:5].lower() == "data:":
            try:
                raw = await asyncio.to_thread(decode_data_uri, reference.source)
            except PictureError as error:
                raise _to_api_error(error, reference.field) from error
        else:
            raw = await self._read_result(reference) or await self._download(reference)
        if len(raw) > MAX_FILE_BYTES:
            message = f"{reference.field} is {len(raw) // 1024**2} MiB; a reference image may have 50 MiB."
            raise TooLarge(message, param=reference.field)
        return raw

    async def _read_result(self, reference: Reference) -> bytes | None:
        """The stored picture that this URL names; None for any other URL. Raises BadRequest for a deleted picture.

        Only the file name is compared: it has 128 random bits, and a result is reached by every address of the server.
        """
        try:
            name = urlsplit(str(reference.source)).path.rpartition("/")[2]
        except ValueError:
            return None  # not a URL: the download reports that
        if await self._ledger.in_reader(self._ledger.find_result, name) is None:
            return None
        try:
            return await self._storage.in_thread(self._storage.read, name)
        except FileNotFoundError as error:
            message = f"{reference.field}: the picture '{name}' has been deleted."
            raise BadRequest(message, param=reference.field, code="result_not_found") from error

    async def _download(self, reference: Reference) -> bytes:
        url, timeout_s = str(reference.source), self._fetch_timeout_s
        try:
            return await fetch_image(url, allow=self._fetch, max_bytes=MAX_FILE_BYTES, timeout_s=timeout_s)
        except (FetchRefused, FetchFailed) as error:
            raise BadRequest(f"{reference.field}: {error}", param=reference.field, code="invalid_image_url") from error
        except FetchTooLarge as error:
            raise TooLarge(f"{reference.field}: {error}", param=reference.field) from error


def _to_api_error(error: PictureError, field: str) -> ApiError:
    if error.code == "image_too_large":
        return TooLarge(f"{field}: {error}", param=field)
    return BadImageRequest(f"{field}: {error}", param=field, code="invalid_image_file")
