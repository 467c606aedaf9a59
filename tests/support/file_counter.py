"""How many images are in the server's memory: read from the storage, and not yet through a decoder."""

from dataclasses import dataclass
from typing import Any, Self

import pytest

from server.backends.decoding.pool import DecoderPool
from server.backends.storage import LocalStorage


@dataclass
class FileCounter:
    """Counts while its test runs. The storage and the decoders are real."""

    read: int = 0
    in_memory: int = 0
    most: int = 0

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> Self:
        counter = cls()
        read, decode, shrink = LocalStorage.read, DecoderPool.decode_image, DecoderPool.make_thumbnail

        def counted(storage: LocalStorage, name: str) -> bytes:
            data = read(storage, name)
            counter.read += 1
            counter.in_memory += 1
            counter.most = max(counter.most, counter.in_memory)
            return data

        async def decoded(pool: DecoderPool, *args: Any) -> Any:
            try:
                return await decode(pool, *args)
            finally:
                counter.in_memory -= 1

        async def shrunk(pool: DecoderPool, *args: Any) -> Any:
            try:
                return await shrink(pool, *args)
            finally:
                counter.in_memory -= 1

        monkeypatch.setattr(LocalStorage, "read", counted)
        monkeypatch.setattr(DecoderPool, "decode_image", decoded)
        monkeypatch.setattr(DecoderPool, "make_thumbnail", shrunk)
        return counter
