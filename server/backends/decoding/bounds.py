"""Counts the parts of a file that a decoder repeats or keeps, before it is decoded. No pixel is read here, and no
Pillow.

A small file can ask for much: each scan of a progressive JPEG goes over the whole image, and chunks of metadata are
read one by one. Where the walk here and the decoder's differ, the decoder's limits of memory and time still hold.
"""

import re
import struct
import zlib
from dataclasses import dataclass

from server.backends.decoding.messages import ImageError

MAX_SCANS = 100  # encoders write about ten
MAX_PARTS = 65_536  # chunks, segments or blocks; a PNG of 50 MB in pieces of 1 KB has 50,000
MAX_METADATA_BYTES = 16 * 1024**2
MAX_PNG_PROFILE_BYTES = 1024**2  # inflated: Pillow refuses a PNG with a larger one
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT")
JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")  # in a scan, 0xFF is followed by 0x00 or by a restart marker
SOI, EOI, SOS = 0xD8, 0xD9, 0xDA
FRAME_HEADERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
AVIF_STARTS = (b"ftypavif", b"ftypavis")
AVIF_SIZE = re.compile(rb"ispe....(.{8})", re.DOTALL)  # ISO/IEC 23008-12, 6.5.3: of each image in the file
AVIF_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ImageFileInfo:
    """What the decoder needs to know of a file besides its frame, from a scan of the file's structure."""

    coefficient_bytes: int = 0  # of a JPEG in several scans: all of them, whatever the size that is decoded
    canvas_px: int = 0  # of a WebP or an AVIF, whose decoders have several canvases
    cicp: bytes = b""  # of a PNG: its code points for primaries and curve, which Pillow does not read
    bad_profile: slice | None = None  # of a PNG: the chunk for which Pillow would refuse it


def inspect(data: bytes) -> ImageFileInfo:
    """Check a file's bounds, and return its facts. Raises ImageError for a file with too many scans, chunks or
    metadata. Other formats are left to the decoder."""
    if data.startswith(b"\xff\xd8"):
        return _inspect_jpeg(data)
    if data.startswith(PNG_SIGNATURE):
        return _inspect_png(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        _walk_gif(data)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _inspect_webp(data)
    elif data[4:12] in AVIF_STARTS:
        return ImageFileInfo(canvas_px=max((wide * high for wide, high in _avif_sizes(data)), default=0))
    return ImageFileInfo()


class _Count:
    """Parts and bytes of metadata so far. Raises ImageError beyond the bounds."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._parts = self._metadata_bytes = 0

    def add(self, metadata_bytes: int = 0) -> None:
        self._parts += 1
        self._metadata_bytes += metadata_bytes
        if self._parts > MAX_PARTS:
            raise ImageError(f"The image has more than {MAX_PARTS:,} {self._noun}. Save it again as a plain image.")
        if self._metadata_bytes > MAX_METADATA_BYTES:
            limit = MAX_METADATA_BYTES // 1024**2
            raise ImageError(f"The image has more than {limit} MiB of metadata. Save it again without it.")


def _inspect_jpeg(data: bytes) -> ImageFileInfo:
    count, scans, position, coefficient_bytes = _Count("segments"), 0, 2, 0
    components, progressive = 0, False
    while found := JPEG_MARKER.search(data, position):
        marker, position = found[0][1], found.end()
        if marker == EOI:
            break
        if marker == SOI:
            continue
        length = int.from_bytes(data[position : position + 2])
        is_metadata = 0xE0 <= marker <= 0xEF or marker == 0xFE
        count.add(length if is_metadata else 0)
        if marker in FRAME_HEADERS and not components:
            components, coefficient_bytes = _coefficients(data[position + 2 : position + max(2, length)])
            progressive = marker in PROGRESSIVE
        elif marker == SOS:
            scans += 1
            if scans == 1 and not progressive and data[position + 2 : position + 3] == bytes([components]):
                coefficient_bytes = 0  # all components in one scan: decoded row by row
            if scans > MAX_SCANS:
                raise ImageError(f"The JPEG has more than {MAX_SCANS} scans. Save it again as a baseline JPEG or PNG.")
        position += max(2, length)
    return ImageFileInfo(coefficient_bytes)


def _coefficients(frame: bytes) -> tuple[int, int]:
    """Return the number of components, and the bytes of their coefficients: two for each sample."""
    if len(frame) < 6:
        return 0, 0
    height, width, components = struct.unpack_from(">HHB", frame, 1)
    factors = [(byte >> 4) * (byte & 15) for byte in frame[7 : 6 + 3 * components : 3]]
    share = sum(factors) / max(1, *factors) if factors else 0
    return components, int(2 * width * height * share)


def _inspect_png(data: bytes) -> ImageFileInfo:
    count, position, animated, has_pixels = _Count("chunks"), len(PNG_SIGNATURE), False, False
    cicp, bad_profile = b"", None
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        animated = animated or kind == b"acTL"
        has_pixels = has_pixels or kind == b"IDAT"
        if kind == b"IEND" or (kind == b"fcTL" and animated and has_pixels):
            break  # the first frame is all that is read
        count.add(0 if kind in PNG_PIXEL_CHUNKS else length)
        body = slice(position + 8, position + 8 + length)
        if kind == b"cICP" and not has_pixels:
            cicp = data[body]
        elif kind == b"iCCP" and bad_profile is None and not _is_bounded_profile(data[body]):
            bad_profile = slice(position, position + 12 + length)
        position += 12 + length
    return ImageFileInfo(cicp=cicp, bad_profile=bad_profile)


def _is_bounded_profile(chunk: bytes) -> bool:
    """Return whether an iCCP chunk has a profile of bounded size."""
    _, _, rest = chunk.partition(b"\0")
    try:
        inflater = zlib.decompressobj()
        inflater.decompress(rest[1:], MAX_PNG_PROFILE_BYTES)
    except zlib.error:
        return False
    return rest[:1] == b"\0" and not inflater.unconsumed_tail


def _walk_gif(data: bytes) -> None:
    """Count the blocks up to the first frame."""
    count, flags, position = _Count("blocks"), data[10:11] or b"\0", 13
    if flags[0] & 0x80:
        position += 3 << ((flags[0] & 7) + 1)
    while position < len(data) and data[position] not in b",;":
        if data[position] != 0x21:  # not an extension: decoders look for the next one
            count.add()
            position += 1
            continue
        position += 2
        while length := int.from_bytes(data[position : position + 1]):
            count.add(length)
            position += 1 + length
        position += 1


def _inspect_webp(data: bytes) -> ImageFileInfo:
    count, position, canvas_px = _Count("chunks"), 12, 0
    while position + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, position)
        body = data[position + 8 : position + 18]
        canvas_px = canvas_px or _webp_area(kind, body)
        count.add(length if kind in (b"ICCP", b"EXIF", b"XMP ") else 0)
        position += 8 + length + length % 2
    return ImageFileInfo(canvas_px=canvas_px)


def _webp_area(kind: bytes, body: bytes) -> int:
    if len(body) < 10:
        return 0
    if kind == b"VP8X":
        return (int.from_bytes(body[4:7], "little") + 1) * (int.from_bytes(body[7:10], "little") + 1)
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return ((bits & 0x3FFF) + 1) * ((bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", body, 6)
        return int(width & 0x3FFF) * int(height & 0x3FFF)
    return 0


def _avif_sizes(data: bytes) -> list[tuple[int, int]]:
    """Return the sizes of a file's images: tiles, alpha, thumbnails and the whole."""
    return [struct.unpack(">II", found[1]) for found in AVIF_SIZE.finditer(data[:AVIF_HEAD_BYTES])]
