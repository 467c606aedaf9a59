"""Pixels that pass from the server to a worker in a file, so that the server never has them in memory.

A call may have sixteen references: over a hundred megabytes of pixels, which would be copied for every message.
"""

import weakref
from pathlib import Path
from typing import Literal

from pipelines.protocol.images import Picture


class PictureFile(Picture):
    """A Picture whose `data` is in a PPM or PGM file. A worker receives it as a plain Picture.

    The file is deleted with the last reference to this, so a job must be kept until its worker has it.
    """

    __slots__ = ("__weakref__", "path")
    path: Path

    def __init__(self, width_px: int, height_px: int, mode: Literal["RGB", "L"], path: Path) -> None:
        for name, value in (("width_px", width_px), ("height_px", height_px), ("mode", mode), ("path", path)):
            object.__setattr__(self, name, value)
        weakref.finalize(self, path.unlink, missing_ok=True)

    @property
    def data(self) -> bytes:
        """The pixels, read anew each time. Blocks. Raises OSError."""
        return _read_pixels(self.path)

    def __repr__(self) -> str:
        return f"PictureFile({self.width_px}, {self.height_px}, {self.mode!r}, {self.path!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return read_picture, (self.width_px, self.height_px, self.mode, str(self.path))


def read_picture(width_px: int, height_px: int, mode: Literal["RGB", "L"], path: str) -> Picture:
    """The picture as a worker has it. Without its file, as after the end of its call, it has no pixels."""
    try:
        return Picture(width_px, height_px, mode, _read_pixels(Path(path)))
    except FileNotFoundError:
        return Picture(width_px, height_px, mode, b"")


def _read_pixels(path: Path) -> bytes:
    with path.open("rb") as file:
        for _ in range(3):  # the kind, the size, the greatest value
            file.readline()
        return file.read()
