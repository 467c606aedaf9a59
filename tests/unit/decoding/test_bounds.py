"""What is counted in a file before it is decoded."""

import struct
import time

import pytest
from PIL import Image

from server.backends.decoding.bounds import MAX_METADATA_BYTES, MAX_PARTS, MAX_SCANS, inspect
from server.backends.decoding.messages import ImageError
from tests.support.bombs import (
    END_OF_IMAGE,
    START_OF_SCAN,
    chunk,
    encode,
    gif_of_frames,
    jpeg_of_scans,
    webp_of_frames,
    with_chunks,
)

PNG = encode(Image.new("RGB", (8, 8)))
JPEG = encode(Image.effect_noise((64, 64), 90).convert("RGB"), "JPEG")
GIF = encode(Image.new("P", (8, 8)), "GIF")
WEBP = encode(Image.new("RGB", (40, 30)), "WEBP")
LARGE = b"\0" * 60_000
SEGMENT = b"\xff\xe1" + struct.pack(">H", len(LARGE) + 2) + LARGE
COMMENT = b"\x21\xfe" + (b"\xff" + b"a" * 255) * 70_000 + b"\0"


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(struct.pack("<4sI", kind, len(data)) + data + b"\0" * (len(data) % 2) for kind, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (jpeg_of_scans(MAX_SCANS + 1, 64), "scans"),
        (JPEG[:2] + b"\xff\xfe\x00\x02" * (MAX_PARTS + 1) + JPEG[2:], "segments"),
        (JPEG[:2] + SEGMENT * (MAX_METADATA_BYTES // len(LARGE) + 1) + JPEG[2:], "metadata"),
        (with_chunks(PNG, *[chunk(b"tEXt", b"")] * (MAX_PARTS + 1)), "chunks"),
        (with_chunks(PNG, chunk(b"prVt", b"\0" * (MAX_METADATA_BYTES + 1))), "metadata"),
        (PNG[:-12] + chunk(b"IDAT", b"") * (MAX_PARTS + 1) + PNG[-12:], "chunks"),
        (PNG[:-12] + chunk(b"tEXt", b"\0" * (MAX_METADATA_BYTES + 1)) + PNG[-12:], "metadata"),
        (GIF[:13] + COMMENT + GIF[13:], "block|metadata"),
        (GIF[:13] + b"\0" * (MAX_PARTS + 1) + GIF[13:], "blocks"),
        (riff(*[(b"EXIF", b"")] * (MAX_PARTS + 1)), "chunks"),
        (riff((b"ICCP", b"\0" * (MAX_METADATA_BYTES + 1))), "metadata"),
    ],
)
def test_too_many_scans_chunks_or_metadata_are_refused(data: bytes, what: str) -> None:
    with pytest.raises(ImageError, match=what):
        inspect(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        jpeg_of_scans(MAX_SCANS, 64),
        JPEG + START_OF_SCAN * 200,  # after the end, as in the video of a motion photo
        JPEG[:2] + b"\xff\xe1\x04\x02" + START_OF_SCAN * 512 + JPEG[2:],  # inside a segment, as in a thumbnail
        *[data[:size] for data in (PNG, JPEG, GIF, WEBP) for size in range(1, 200)],
        gif_of_frames(70_000),
        webp_of_frames(200, 16),
        PNG[:33] + chunk(b"acTL", b"\0" * 8) + PNG[33:-12] + chunk(b"fcTL", b"") + chunk(b"fdAT", b"") * 70_000,
    ],
)
def test_other_files_are_left_to_the_decoder(data: bytes) -> None:
    inspect(data)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_the_coefficients_of_a_progressive_jpeg_are_counted(subsampling: int) -> None:
    image = Image.effect_noise((160, 80), 90).convert("RGB")
    samples = 160 * 80 * {0: 3, 1: 2, 2: 1.5}[subsampling]
    progressive = encode(image, "JPEG", progressive=True, subsampling=subsampling)
    assert inspect(progressive).coefficient_bytes == 2 * samples
    assert inspect(encode(image, "JPEG", subsampling=subsampling)).coefficient_bytes == 0


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exif": b"Exif\0\0"}])
def test_the_canvas_of_a_webp_is_read_from_its_header(options: dict[str, object]) -> None:
    assert inspect(encode(Image.new("RGBA", (40, 30)), "WEBP", **options)).canvas_px == 1200


@pytest.mark.parametrize("filler", [b"\xff", b"\xff\x00", b"\x00", b"\xff\xd0"])
def test_a_scan_without_an_end_takes_no_time(filler: bytes) -> None:
    data = JPEG.removesuffix(END_OF_IMAGE) + filler * (20_000_000 // len(filler))
    started = time.process_time()
    inspect(data)
    assert time.process_time() - started < 10
