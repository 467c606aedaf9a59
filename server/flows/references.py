"""Reference images: from a URL, a data URI or a file part to upright pixels.

A URL of one of this server's own results is read from storage and never from the network, so a chain of calls works
behind an air gap.
"""

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

from pipelines.protocol.images import Picture
from server.backends.fetch import FetchFailed, FetchRefused, FetchTooLarge, fetch_image
from server.backends.image_decoding import DecodedPicture, PictureError, decode_data_uri, decode_mask, decode_picture
from server.errors import ApiError, BadImageRequest, BadRequest, TooLarge
from server.services import Services

MAX_FILE_BYTES = 50 * 1024**2
MAX_FIRST_PX = 8_300_000  # the largest picture that any tier draws
MAX_OTHER_PX = 1_850_000  # further references only condition; no pipeline reads them larger than this


@dataclass(frozen=True, slots=True)
class Reference:
    """A picture as it was sent: text is a URL or data URI, bytes are a file. `field` is where errors point."""

    field: str
    source: str | bytes


async def load_references(services: Services, references: tuple[Reference, ...]) -> tuple[DecodedPicture, ...]:
    """All references, decoded. Raises ApiError for the first that can't be used."""
    return tuple([await _load(services, item, first=i == 0) for i, item in enumerate(references)])


async def load_mask(services: Services, mask: Reference | None, canvas: DecodedPicture | None) -> Picture | None:
    """The mask as "L" pixels in the size of the first reference, 255 where to paint. Raises ApiError."""
    if mask is None:
        return None
    if canvas is None:
        raise BadRequest("A mask needs a reference image to paint on: send 'image' too.", param="mask")
    raw = await _bytes(services, mask)
    original = (canvas.original_width_px, canvas.original_height_px)
    target = (canvas.picture.width_px, canvas.picture.height_px)
    try:
        return await asyncio.to_thread(decode_mask, raw, original, target)
    except PictureError as error:
        raise _refusal(error, "mask") from error


async def _load(services: Services, reference: Reference, *, first: bool) -> DecodedPicture:
    raw = await _bytes(services, reference)
    try:
        return await asyncio.to_thread(decode_picture, raw, MAX_FIRST_PX if first else MAX_OTHER_PX)
    except PictureError as error:
        raise _refusal(error, reference.field) from error


async def _bytes(services: Services, reference: Reference) -> bytes:
    if isinstance(reference.source, bytes):
        raw = reference.source
    elif reference.source[:5].lower() == "data:":
        try:
            raw = await asyncio.to_thread(decode_data_uri, reference.source)
        except PictureError as error:
            raise _refusal(error, reference.field) from error
    else:
        raw = await _own_result(services, reference) or await _fetched(services, reference)
    if len(raw) > MAX_FILE_BYTES:
        size = len(raw) // 1024**2
        raise TooLarge(f"{reference.field} is {size} MiB; a reference image may have 50 MiB.", param=reference.field)
    return raw


async def _own_result(services: Services, reference: Reference) -> bytes | None:
    """The stored picture that this URL names. The name alone decides: it has 128 random bits, and the same result has
    as many addresses as the server does. Raises BadRequest for one that was deleted."""
    try:
        name = urlsplit(str(reference.source)).path.rpartition("/")[2]
    except ValueError:
        return None  # no URL at all, which is said where others are fetched
    if await asyncio.to_thread(services.ledger.find_result, name) is None:
        return None
    try:
        return await asyncio.to_thread(services.storage.read, name)
    except FileNotFoundError as error:
        message = f"{reference.field}: the picture '{name}' has been deleted."
        raise BadRequest(message, param=reference.field, code="result_not_found") from error


async def _fetched(services: Services, reference: Reference) -> bytes:
    settings = services.settings
    url = str(reference.source)
    try:
        return await fetch_image(
            url, allow=settings.fetch, max_bytes=MAX_FILE_BYTES, timeout_s=settings.fetch_timeout_s
        )
    except (FetchRefused, FetchFailed) as error:
        raise BadRequest(f"{reference.field}: {error}", param=reference.field, code="invalid_image_url") from error
    except FetchTooLarge as error:
        raise TooLarge(f"{reference.field}: {error}", param=reference.field) from error


def _refusal(error: PictureError, field: str) -> ApiError:
    if error.code == "image_too_large":
        return TooLarge(f"{field}: {error}", param=field)
    return BadImageRequest(f"{field}: {error}", param=field, code="invalid_image_file")
