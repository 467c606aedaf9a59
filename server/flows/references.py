"""Reference images: from a URL, a data URI, a file part or a stored file to upright pixels.

A URL of one of this server's own results is read from storage and never from the network, so a chain of calls works
without internet access.

A request of a hundred bytes can name gigabytes of images. So an image that a request does not carry itself is read when
its turn has come, and its turn lasts until it is decoded: few files are in memory, however many are asked for at once.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from urllib.parse import urlsplit

from pipelines.protocol.images import RawImage
from server.accounts.results import ResultStore
from server.backends.decoding.data_uri import decode_data_uri, is_data_uri
from server.backends.decoding.fair_semaphore import FairSemaphore
from server.backends.decoding.messages import ImageError
from server.backends.decoding.pool import DecoderFailed, DecoderPool
from server.backends.fetch import FetchFailed, FetchRefused, FetchRules, FetchTooLarge, fetch_image
from server.backends.storage import Storage
from server.errors import ApiError, BadImageRequest, BadRequest, EngineFailure, TooLarge

MAX_FILE_BYTES = 50 * 1024**2
MAX_FIRST_PX = 8_300_000  # the largest output of any tier
MAX_OTHER_PX = 1_850_000  # further references only condition; no pipeline reads them larger than this
TURNS = 8  # files of each kind in memory at once: two are decoded, others are read or wait
BASE64 = re.compile(r"[A-Za-z0-9+/_=\s-]{64,}")
BASE64_KINDS = {"/9j/": "jpeg", "UklGR": "webp", "R0lGOD": "gif"}  # how such files begin; any other is shown as PNG
DOWNLOADS_PER_KEY = 4  # a server that answers slowly must not stop the other images of the key


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image of a response's chain or of a conversation: the name of its file."""

    name: str


Source = str | bytes | StoredImage


@dataclass(frozen=True, slots=True)
class Reference:
    """An image as it was sent: text is a URL or data URI, bytes are a file. `field` is the `param` of errors. Of a
    `past` one, which an earlier message has, its client can do without: it can't take back what was said."""

    field: str
    source: Source
    past: bool = False


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """Upright RGB pixels, scaled down if needed, and the original size (upright too)."""

    image: RawImage
    original_width_px: int
    original_height_px: int


class ReferenceLoader:
    """Reads and decodes references. `fetch` says what is downloaded from other servers.

    `key_id` says whose they are: keys take turns at the decoders.
    """

    def __init__(self, results: ResultStore, storage: Storage, decoders: DecoderPool, fetch: FetchRules) -> None:
        self._results = results
        self._storage = storage
        self._decoders = decoders
        self._fetch = fetch
        # each kind has its own: what is stuck delays only its own kind
        self._data_uris, self._files, self._downloads = (
            FairSemaphore(TURNS),
            FairSemaphore(TURNS),
            FairSemaphore(TURNS, DOWNLOADS_PER_KEY),
        )

    async def load(self, key_id: str, references: Sequence[Reference]) -> tuple[DecodedImage, ...]:
        """Decode all references. Raises ApiError for the first that can't be used."""
        return tuple([await self._load_one(key_id, item, is_first=i == 0) for i, item in enumerate(references)])

    async def load_shown(self, key_id: str, references: Sequence[Reference]) -> list[DecodedImage | None]:
        """Decode all references. None stands for a past one that can't be used: a dead link, a deleted file, no image.
        Raises ApiError for the first other one that can't be."""
        past = [i for i, one in enumerate(references) if one.past]
        required = [i for i, one in enumerate(references) if not one.past]
        new = {i: await self._load_one(key_id, references[i], is_first=i == 0) for i in required}
        # at once: a server that does not answer takes its whole time limit
        loaded = await asyncio.gather(*(self._load_past(key_id, references[i], is_first=i == 0) for i in past))
        found = {**new, **dict(zip(past, loaded, strict=True))}
        return [found[i] for i in range(len(references))]

    async def load_mask(
        self, key_id: str, mask: Reference | None, first_reference: DecodedImage | None
    ) -> RawImage | None:
        """Read the mask as "L" pixels in the size of the first reference, 255 where to paint. Raises ApiError."""
        if mask is None:
            return None
        if first_reference is None:
            raise BadRequest("A mask needs a reference image to paint on: send 'image' too.", param="mask")
        original = (first_reference.original_width_px, first_reference.original_height_px)
        target = (first_reference.image.width_px, first_reference.image.height_px)
        async with self.in_memory(key_id, mask) as data:
            try:
                return await self._decoders.decode_mask(key_id, data, original, target)
            except (ImageError, DecoderFailed) as error:
                raise _to_api_error(error, "mask") from error

    async def decode(self, key_id: str, field: str, data: bytes, max_area_px: int) -> DecodedImage:
        """Decode a file that is in memory. Raises ApiError."""
        try:
            image, original = await self._decoders.decode_image(key_id, data, max_area_px)
        except (ImageError, DecoderFailed) as error:
            raise _to_api_error(error, field) from error
        return DecodedImage(image, *original)

    @asynccontextmanager
    async def in_memory(self, key_id: str, reference: Reference) -> AsyncIterator[bytes]:
        """Read the file of a reference, and take one of the key's turns while this is entered. Raises ApiError."""
        _check_form(reference)
        source = await self._locate(reference.source)
        async with self._turn(key_id, source):
            data = await self._read(reference, source)
            if len(data) > MAX_FILE_BYTES:
                message = f"{reference.field} is {len(data) // 1024**2} MiB; a reference image may have 50 MiB."
                raise TooLarge(message, param=reference.field)
            yield data

    async def _load_one(self, key_id: str, reference: Reference, *, is_first: bool) -> DecodedImage:
        async with self.in_memory(key_id, reference) as data:
            return await self.decode(key_id, reference.field, data, MAX_FIRST_PX if is_first else MAX_OTHER_PX)

    async def _load_past(self, key_id: str, reference: Reference, *, is_first: bool) -> DecodedImage | None:
        try:
            return await self._load_one(key_id, reference, is_first=is_first)
        except ApiError as error:
            if error.status >= 500:
                raise
            return None

    async def _locate(self, source: Source) -> Source:
        """Replace the URL of a stored result with its file. Only the file name is compared: it has 128 random bits, and
        a result is reached by every address of the server."""
        if not isinstance(source, str) or is_data_uri(source):
            return source
        try:
            name = urlsplit(source).path.rpartition("/")[2]
        except ValueError:
            return source  # not a URL: the download reports that
        found = await self._results.in_reader(self._results.find_file, name)
        return source if found is None else StoredImage(name)

    def _turn(self, key_id: str, source: Source) -> AbstractAsyncContextManager[None]:
        """Take one of the key's turns. A file part needs none: it came with the request."""
        if isinstance(source, bytes):
            return nullcontext()
        if isinstance(source, StoredImage):
            return self._files.take(key_id)
        return (self._data_uris if is_data_uri(source) else self._downloads).take(key_id)

    async def _read(self, reference: Reference, source: Source) -> bytes:
        if isinstance(source, bytes):
            return source
        if isinstance(source, StoredImage):
            return await self._read_file(reference, source.name)
        if not is_data_uri(source):
            return await self._download(reference.field, source)
        try:
            return await asyncio.to_thread(decode_data_uri, source)
        except ImageError as error:
            raise _to_api_error(error, reference.field) from error

    async def _read_file(self, reference: Reference, name: str) -> bytes:
        """Read a stored image. Raises BadRequest if it was deleted."""
        try:
            return await self._storage.in_thread(self._storage.read, name)
        except FileNotFoundError as error:
            if isinstance(reference.source, StoredImage):
                message = "An image of this chain has been deleted; begin a new one."
                raise BadRequest(message, param="previous_response_id") from error
            message = f"{reference.field}: the image '{name}' has been deleted."
            raise BadRequest(message, param=reference.field, code="result_not_found") from error

    async def _download(self, field: str, url: str) -> bytes:
        try:
            return await fetch_image(url, self._fetch)
        except (FetchRefused, FetchFailed) as error:
            raise BadRequest(f"{field}: {error}", param=field, code="invalid_image_url") from error
        except FetchTooLarge as error:
            raise TooLarge(f"{field}: {error}", param=field) from error


def _check_form(reference: Reference) -> None:
    """Refuse base64 without a data URI, which some servers take. Raises BadRequest with the form that works here."""
    source = reference.source
    if not isinstance(source, str) or not BASE64.fullmatch(source[:1000]):
        return
    kind = next((kind for start, kind in BASE64_KINDS.items() if source.lstrip().startswith(start)), "png")
    message = f"{reference.field} is base64 alone: send it as 'data:image/{kind};base64,...'."
    raise BadRequest(message, param=reference.field, code="invalid_image_url")


def _to_api_error(error: ImageError | DecoderFailed, field: str) -> ApiError:
    if isinstance(error, DecoderFailed):
        return EngineFailure(f"{field}: the image could not be decoded; nothing was charged. Please send it again.")
    if error.code == "image_too_large":
        return TooLarge(f"{field}: {error}", param=field)
    return BadImageRequest(f"{field}: {error}", param=field, code="invalid_image_file")
