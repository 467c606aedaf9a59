"""Reference images: from a URL, a data URI or a file part to upright pixels.

A URL of one of this server's own results is read from storage and never from the network, so a chain of calls works
without internet access.
"""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from pipelines.protocol.images import Picture
from server.accounts.ledger import Ledger
from server.backends.decoding.data_uri import decode_data_uri
from server.backends.decoding.messages import PictureError
from server.backends.decoding.pool import DecoderFailed, DecoderPool
from server.backends.fetch import FetchFailed, FetchRefused, FetchTooLarge, fetch_image
from server.backends.storage import Storage
from server.errors import ApiError, BadImageRequest, BadRequest, EngineFailure, TooLarge

MAX_FILE_BYTES = 50 * 1024**2
MAX_FIRST_PX = 8_300_000  # the largest output of any tier
MAX_OTHER_PX = 1_850_000  # further references only condition; no pipeline reads them larger than this


@dataclass(frozen=True, slots=True)
class Reference:
    """A picture as it was sent: text is a URL or data URI, bytes are a file. `field` is the `param` of errors."""

    field: str
    source: str | bytes


@dataclass(frozen=True, slots=True)
class DecodedPicture:
    """Upright RGB pixels, scaled down if needed, and the original size (upright too)."""

    picture: Picture
    original_width_px: int
    original_height_px: int


class ReferenceLoader:
    """Reads and decodes references. `fetch` allows downloads from other servers.

    `key_id` says whose they are: keys take turns at the decoders.
    """

    def __init__(
        self, ledger: Ledger, storage: Storage, decoders: DecoderPool, *, fetch: bool, fetch_timeout_s: float
    ) -> None:
        self._ledger = ledger
        self._storage = storage
        self._decoders = decoders
        self._fetch = fetch
        self._fetch_timeout_s = fetch_timeout_s
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by key, while they are used

    async def load(self, key_id: str, references: Sequence[Reference]) -> tuple[DecodedPicture, ...]:
        """All references, decoded. Raises ApiError for the first that can't be used."""
        return tuple([await self._load_one(key_id, item, is_first=i == 0) for i, item in enumerate(references)])

    async def load_mask(
        self, key_id: str, mask: Reference | None, first_reference: DecodedPicture | None
    ) -> Picture | None:
        """The mask as "L" pixels in the size of the first reference, 255 where to paint. Raises ApiError."""
        if mask is None:
            return None
        if first_reference is None:
            raise BadRequest("A mask needs a reference image to paint on: send 'image' too.", param="mask")
        raw = await self._read(mask)
        original = (first_reference.original_width_px, first_reference.original_height_px)
        target = (first_reference.picture.width_px, first_reference.picture.height_px)
        try:
            return await self._decoders.decode_mask(key_id, raw, original, target)
        except (PictureError, DecoderFailed) as error:
            raise _to_api_error(error, "mask") from error

    async def _load_one(self, key_id: str, reference: Reference, *, is_first: bool) -> DecodedPicture:
        """A key's data URIs are read in turn, as its pictures are decoded: what waits must not be in memory twice."""
        max_area_px = MAX_FIRST_PX if is_first else MAX_OTHER_PX
        turn = self._turns.setdefault(key_id, asyncio.Lock()) if _is_data_uri(reference) else nullcontext()
        async with turn:
            raw = await self._read(reference)
            try:
                picture, original = await self._decoders.decode_picture(key_id, raw, max_area_px)
            except (PictureError, DecoderFailed) as error:
                raise _to_api_error(error, reference.field) from error
        return DecodedPicture(picture, *original)

    async def _read(self, reference: Reference) -> bytes:
        if isinstance(reference.source, bytes):
            raw = reference.source
        elif _is_data_uri(reference):
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


def _is_data_uri(reference: Reference) -> bool:
    return isinstance(reference.source, str) and reference.source[:5].lower() == "data:"


def _to_api_error(error: PictureError | DecoderFailed, field: str) -> ApiError:
    if isinstance(error, DecoderFailed):
        return EngineFailure(f"{field}: the picture could not be decoded; nothing was charged. Please send it again.")
    if error.code == "image_too_large":
        return TooLarge(f"{field}: {error}", param=field)
    return BadImageRequest(f"{field}: {error}", param=field, code="invalid_image_file")
