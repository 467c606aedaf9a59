"""Small files that ask for much, and the pieces that they are made of."""

import io
import struct
import zlib
from functools import cache

from PIL import Image

SIDE_PX = 8000  # 64 megapixels, the most that is accepted
START_OF_SCAN, END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_chunks(png: bytes, *chunks: bytes) -> bytes:
    """The PNG with these chunks after its header."""
    return png[:33] + b"".join(chunks) + png[33:]


@cache
def rgba_of_64_megapixels() -> bytes:
    return encode(Image.new("RGBA", (SIDE_PX, SIDE_PX), (10, 20, 30, 128)))


@cache
def jpeg_of_scans(scans: int, side_px: int = SIDE_PX) -> bytes:
    """A progressive JPEG whose last scan is there many times. A scan of one colour has about a hundred bytes."""
    jpeg = encode(Image.new("L", (side_px, side_px), 128), "JPEG", progressive=True)
    last = jpeg[jpeg.rindex(START_OF_SCAN) : -2]
    return jpeg[:-2] + last * (scans - jpeg.count(START_OF_SCAN)) + END_OF_IMAGE


@cache
def gif_of_frames(frames: int, side_px: int = 256) -> bytes:
    """An animation whose later frames have one pixel each."""
    head = b"GIF89a" + struct.pack("<HHBBB", side_px, side_px, 0xF0, 0, 0) + bytes([255, 0, 0, 0, 0, 255])
    control = b"\x21\xf9\x04\x00\x0a\x00\x00\x00"
    dot = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    full = encode(Image.new("P", (side_px, side_px)), "GIF")
    first = full[full.index(b"\x2c" + struct.pack("<HHHH", 0, 0, side_px, side_px)) : -1]
    return head + control + first + (control + dot) * (frames - 1) + b";"


@cache
def webp_of_frames(frames: int, side_px: int) -> bytes:
    images = [Image.new("RGB", (side_px, side_px), (index, 0, 0)) for index in range(frames)]
    return encode(images[0], "WEBP", save_all=True, append_images=images[1:], method=0)


def png_of_texts(texts: int, characters: int = 1_000_000) -> bytes:
    """A PNG with zTXt and iCCP chunks that inflate a thousandfold."""
    packed = zlib.compress(b"a" * characters, 9)
    text = chunk(b"zTXt", b"k\0\0" + packed)
    return with_chunks(encode(Image.new("RGB", (64, 64))), chunk(b"iCCP", b"p\0\0" + packed), *[text] * texts)
