"""Decoded references as PNG files, without Pillow, which the server's process does not import."""

import struct
import zlib

from pipelines.protocol.images import RawImage

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {"L": 0, "RGB": 2}
LEVEL = 1  # the file crosses a network once


def to_png(image: RawImage) -> bytes:
    """Encode the pixels as a PNG file. Blocks: for a thread."""
    pixels, row_bytes = memoryview(image.data), image.width_px * len(image.mode)
    rows = b"".join(
        b"\0" + pixels[start : start + row_bytes] for start in range(0, row_bytes * image.height_px, row_bytes)
    )
    header = struct.pack(">IIBBBBB", image.width_px, image.height_px, 8, COLOUR_TYPES[image.mode], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, LEVEL)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
