"""Small copies of stored images, made by a decoder when they are first asked for, and kept for a while."""

import asyncio
import re
from pathlib import Path
from weakref import WeakValueDictionary

from server.backends.decoding.messages import ImageError
from server.backends.decoding.pool import DecoderFailed, DecoderPool
from server.backends.storage import LocalStorage, Storage
from server.errors import EngineFailure

WIDTHS_PX = (160, 320, 640)
SMALL = re.compile(r"[0-9a-f]{32}\.w\d+")  # as `_names` names them; else it is no thumbnail
MEDIA_TYPE = "image/webp"
OWNER = "thumbnails"  # whose turns it takes at the decoders: one image at a time, whoever asks
IN_MEMORY = 2  # originals: one is decoded, the next is read. Whoever has a URL may ask for thumbnails


class Thumbnails:
    """Makes and keeps thumbnails. `cache` holds them under the image's name with the size as the extension."""

    def __init__(self, storage: Storage, cache: LocalStorage, decoders: DecoderPool) -> None:
        self._storage = storage
        self._cache = cache
        self._decoders = decoders
        self._places = asyncio.Semaphore(IN_MEMORY)
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by name, while they are used

    async def path(self, name: str, width_px: int) -> Path:
        """Return the path of a WebP file of about width_px x width_px pixels in the image's shape, which is made if it
        is missing. Raises FileNotFoundError without the image, and EngineFailure."""
        small = _names(name)[WIDTHS_PX.index(width_px)]
        if (path := await self._find_cached(small)) is not None:
            return path
        making = self._making.setdefault(small, asyncio.Lock())  # two writers of one file would fail
        async with making, self._places:
            if (path := await self._find_cached(small)) is None:  # another request may have made it meanwhile
                await self._make(name, small, width_px)
                path = await self._find_cached(small)
        if path is None:
            raise FileNotFoundError(small)
        return path

    async def _find_cached(self, small: str) -> Path | None:
        return await self._cache.in_thread(self._cache.path, small)

    async def _make(self, name: str, small: str, width_px: int) -> None:
        data = await self._storage.in_thread(self._storage.read, name)
        try:
            webp = await self._decoders.make_thumbnail(OWNER, data, width_px**2)
        except (ImageError, DecoderFailed) as error:
            raise EngineFailure(f"The thumbnail of '{name}' could not be made: {error}") from error
        await self._cache.in_thread(self._cache.write, small, webp)

    async def delete(self, name: str) -> None:
        """Delete the small copies of an image, together with it."""
        await self._cache.in_thread(self._cache.delete, _names(name))

    async def sweep(self, max_age_s: float) -> None:
        """Delete the thumbnails that were made so long ago: the next request makes them again."""
        pages = self._cache.older(max_age_s)
        while (page := await self._cache.in_thread(next, pages, None)) is not None:
            await self._cache.in_thread(self._cache.delete, [name for name in page if SMALL.fullmatch(name)])


def _names(name: str) -> list[str]:
    return [f"{name.partition('.')[0]}.w{width}" for width in WIDTHS_PX]
