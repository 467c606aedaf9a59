"""Pixels that pass from the server to a worker in a file, so that neither has them in memory while a job waits.

A call may have sixteen references: over a hundred megabytes of pixels, which every message would copy.
"""

import weakref
from pathlib import Path
from typing import Literal, Self

from pipelines.protocol.images import RawImage


class RawImageFile(RawImage):
    """An image whose `data` is in a PPM or PGM file, read anew each time.

    The server's deletes the file with the last reference to it, so the server keeps a job until its worker has ended
    it. The worker's only reads it.
    """

    __slots__ = ("__weakref__", "path")
    path: Path

    def __init__(self, width_px: int, height_px: int, mode: Literal["RGB", "L"], path: Path) -> None:
        for name, value in (("width_px", width_px), ("height_px", height_px), ("mode", mode), ("path", path)):
            object.__setattr__(self, name, value)

    @classmethod
    def owning(cls, width_px: int, height_px: int, mode: Literal["RGB", "L"], path: Path) -> Self:
        """Return an image that deletes its file at its end."""
        image = cls(width_px, height_px, mode, path)
        weakref.finalize(image, path.unlink, missing_ok=True)
        return image

    @property
    def data(self) -> bytes:
        """Read the pixels; black ones without the file. Blocks. Raises OSError.

        A cancelled job may have lost its file while it is drawn in one batch with others. It must not fail those, and
        nobody sees its own image.
        """
        try:
            with self.path.open("rb") as file:
                for _ in range(3):  # the kind, the size, the greatest value
                    file.readline()
                return file.read()
        except FileNotFoundError:
            return bytes(self.width_px * self.height_px * len(self.mode))

    def __repr__(self) -> str:
        return f"RawImageFile({self.width_px}, {self.height_px}, {self.mode!r}, {self.path!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return RawImageFile, (self.width_px, self.height_px, self.mode, self.path)
