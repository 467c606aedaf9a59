"""Decodes untrusted reference images to upright pixels. Pillow only; no torch.

The size in the header is checked before any pixel is decoded, so a decompression bomb costs nothing.
"""

import base64
import binascii
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageOps, UnidentifiedImageError

from pipelines.protocol.images import Picture

MAX_SOURCE_PX = 64_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
# Pillow warns of odd metadata; sizes are checked below. Set at import: warning filters are global, not per thread.
warnings.filterwarnings("ignore", module="PIL")
PictureErrorCode = Literal["invalid_image_file", "image_too_large"]


class PictureError(Exception):
    """A file that can't be decoded or is too large; the message is for the caller."""

    def __init__(self, message: str, code: PictureErrorCode = "invalid_image_file") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class DecodedPicture:
    """Upright RGB pixels, scaled down if needed, and the original size (upright too)."""

    picture: Picture
    original_width_px: int
    original_height_px: int


def decode_data_uri(uri: str) -> bytes:
    """The bytes of a base64 data URI. Raises PictureError."""
    head, comma, payload = uri.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise PictureError("A data URI must look like 'data:image/png;base64,...'.")
    try:
        return base64.b64decode("".join(payload.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError(f"The data URI is not valid base64: {error}.") from error


def decode_picture(data: bytes, max_area_px: int) -> DecodedPicture:
    """Upright RGB pixels, on white where the file is transparent, of at most max_area_px. Raises PictureError."""
    with _open_image(data) as image:
        upright = ImageOps.exif_transpose(image)
        width, height = upright.size
        rgb = _flatten_to_rgb(upright)
        scale = (max_area_px / (width * height)) ** 0.5
        if scale < 1:
            size = (max(1, int(width * scale)), max(1, int(height * scale)))
            rgb = rgb.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
        return DecodedPicture(Picture(*rgb.size, "RGB", rgb.tobytes()), width, height)


def decode_mask(data: bytes, original: tuple[int, int], target: tuple[int, int]) -> Picture:
    """The inpainting mask, as "L" pixels of the target size: 255 paints, 0 keeps. Raises PictureError.

    With an alpha channel, alpha 0 is painted, as in OpenAI's API; without one, white is. `original` is the original
    size of the first reference, which the mask must have.
    """
    with _open_image(data) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.size != original:
            sizes = f"{upright.width}x{upright.height}, the first reference image {original[0]}x{original[1]}"
            raise PictureError(f"The mask must have the size of the image: the mask is {sizes}.")
        if upright.mode in ALPHA_MODES or "transparency" in upright.info:
            paint = ImageOps.invert(upright.convert("RGBA").getchannel("A"))
        else:
            paint = upright.convert("L")
        binary = paint.point([0] * 128 + [255] * 128)
        if binary.getextrema()[1] == 0:
            raise PictureError("The mask leaves nothing to paint: make the part to change transparent, or white.")
        if binary.size != target:
            binary = binary.resize(target, Image.Resampling.NEAREST)
        return Picture(*binary.size, "L", binary.tobytes())


@contextmanager
def _open_image(data: bytes) -> Iterator[Image.Image]:
    """The decoded first frame. Every error that Pillow raises for hostile bytes becomes a PictureError."""
    if not data:
        raise PictureError("The file is empty.")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_area(image.width, image.height)
            image.load()
            yield image
    except Image.DecompressionBombError as error:
        raise PictureError(f"The image is too large: {error}", "image_too_large") from error
    except UnidentifiedImageError as error:
        raise PictureError("The file is not a PNG, JPEG, WebP or GIF image that can be read.") from error
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError, MemoryError) as error:
        raise PictureError(f"The image is corrupt or truncated: {error}.") from error


def _check_area(width: int, height: int) -> None:
    if width * height > MAX_SOURCE_PX:
        limit = MAX_SOURCE_PX // 1_000_000
        raise PictureError(
            f"The image is {width}x{height}; at most {limit} megapixels are accepted.", "image_too_large"
        )


def _flatten_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ALPHA_MODES or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    if image.mode.startswith(("I", "F")):  # 16 bits a channel: Pillow's conversion would clip, not scale
        image = image.point(lambda value: value / 256).convert("L")
    return image.convert("RGB")
