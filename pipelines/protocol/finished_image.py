"""A drawn image at exactly the size that was asked for, as a file with the generation parameters as metadata.

A pipeline may draw another size than it was given: some choose their own for one megapixel, some round to a multiple
that is not known before. Nothing here pads an image, and nothing cuts more than a strip off it.

Imports Pillow, so the server's own process does not import this: image workers do, and the server's decoders, which
finish the images of other servers.
"""

import io
import json
from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from pipelines.protocol.images import Encoding
from pipelines.protocol.pixels import with_background
from pipelines.protocol.provenance import XMP_KEYWORD, xmp_packet

MAX_CUT = 0.06  # of a side: what rounding both sides to a multiple of 32 px takes of a megapixel at 16:9
DESCRIPTION = 0x010E  # EXIF ImageDescription, which viewers of JPEG and WebP show
DESCRIPTION_BYTES = 65_000  # at most: a JPEG has room for 65,533 bytes of EXIF, the frame around it included
FULL_CHROMA_QUALITY = 90  # from which a JPEG keeps the colour of every pixel, as fine coloured lines need
PNG_LEVEL = 3  # a third of the time of the default for a few per cent more bytes


class WrongSize(Exception):
    """An image of another shape than was asked for."""


def to_planned_size(image: Image.Image, size: tuple[int, int], *, stretched: bool = False) -> Image.Image:
    """Return the image at `size` (width, height in px): as it is, or scaled to cover it and cut by MAX_CUT of a side at
    most. If it was drawn from an image of that size, `stretched` to its own, it is scaled back, so that the two align.

    Raises WrongSize where more would have to be cut.
    """
    if image.size == size:
        return image
    drawn, asked = image.width / image.height, size[0] / size[1]
    if 1 - min(drawn, asked) / max(drawn, asked) > MAX_CUT:
        raise WrongSize(
            f"the pipeline drew {image.width}x{image.height} where {size[0]}x{size[1]} was asked for, which is another "
            "shape"
        )
    if stretched:
        return image.resize(size, Image.Resampling.LANCZOS)
    return ImageOps.fit(image, size, Image.Resampling.LANCZOS)


def encode_file(image: Image.Image, encoding: Encoding, metadata: Mapping[str, Any]) -> bytes:
    """Encode an image as a file with the mark of its source, and with its alpha channel or on white. Empty metadata
    fields are left out. Raises NoTransparency."""
    image = with_background(image, encoding.background)
    fields = {name: value for name, value in metadata.items() if value not in (None, "", {})}
    file = io.BytesIO()
    mark = xmp_packet(encoding.source) if encoding.source is not None else ""
    if encoding.format == "png":
        info = PngInfo()
        for name, value in fields.items():
            info.add_itxt(name, value if isinstance(value, str) else json.dumps(value))
        if mark:
            info.add_itxt(XMP_KEYWORD, mark)
        image.save(file, "PNG", pnginfo=info, compress_level=PNG_LEVEL)
    else:
        exif = Image.Exif()
        exif[DESCRIPTION] = _description(fields)
        lossless = encoding.format == "webp" and encoding.quality == 100
        chroma = 0 if encoding.quality >= FULL_CHROMA_QUALITY else -1  # of JPEG: 4:4:4, or the codec's 4:2:0
        image.save(
            file, encoding.format, quality=encoding.quality, exif=exif, lossless=lossless, subsampling=chroma,
            xmp=mark.encode(),
        )  # fmt: skip
    return file.getvalue()


def _description(fields: Mapping[str, Any]) -> bytes:
    """Return the fields as JSON in UTF-8. To fit, the longest texts are truncated and end in '…'."""
    truncated = dict(fields)
    while len(text := json.dumps(truncated, ensure_ascii=False).encode()) > DESCRIPTION_BYTES:
        texts = {name: value for name, value in truncated.items() if isinstance(value, str)}
        longest = max(texts, key=lambda name: len(texts[name].encode()))
        truncated[longest] = texts[longest][: len(texts[longest]) * 9 // 10 - 1] + "…"
    return text
