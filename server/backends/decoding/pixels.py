"""Decodes untrusted images to upright pixels, in little more memory than one frame. Pillow only; no torch.

The memory that an image will take is known from its header, before any pixel is decoded. A large image is shrunk by a
whole factor before anything else copies it: a JPEG while it is decoded, others in strips.
"""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import AvifImagePlugin, ExifTags, Image, ImageOps, UnidentifiedImageError, features

from server.backends.decoding.bounds import ImageFileInfo, inspect
from server.backends.decoding.colours import (
    EXIF_ERRORS,
    ToSrgb,
    conversion_bytes,
    eight_bits,
    embedded_profile,
    profile_of_camera,
    to_srgb,
)
from server.backends.decoding.messages import MAX_PX, ImageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", *(["AVIF"] if features.check("avif") else []))
FOREIGN = {  # how files of formats begin that people send, and that are not read here
    b"ftypheic": "HEIC", b"ftypheix": "HEIC", b"ftyphevc": "HEIC", b"ftypmif1": "HEIF", b"ftypavif": "AVIF",
    b"JXL ": "JPEG XL", b"jP  ": "JPEG 2000", b"8BPS": "PSD", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF",
    b"%PDF": "PDF", b"<svg": "SVG", b"<?xml": "SVG", b"\xff\x0a": "JPEG XL", b"II+\0": "TIFF",
}  # fmt: skip
ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
SMALL_MODES = {"1": 1, "L": 1, "P": 1, "I;16": 2}  # bytes of a pixel in memory; 4 in the others, RGB included
WEBP_BYTES_PER_PX = 16  # two canvases, the frame and its copy; an AVIF takes 9 to 14
SHRUNK_FIRST_PX = 16_000_000  # above it a whole factor is taken off before anything copies the pixels
STRIP_PX = 1_000_000
NOISE_LEVELS = 16  # of a mask, by which compression, a network or a wide blur moves what was black or white
SNAPPED = [0 if i < NOISE_LEVELS else 255 if i > 255 - NOISE_LEVELS else i for i in range(256)]
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = {UPRIGHT[orientation] for orientation in (5, 6, 7, 8)}  # they swap width and height
# Pillow warns of odd metadata; sizes are checked below.
warnings.filterwarnings("ignore", module="PIL")
AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # each thread takes address space, which is bounded


class TooMuchMemory(Exception):
    """Decoding would take this much memory, which is more than was allowed."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"decoding takes {needed_bytes / 1e6:.0f} MB")
        self.needed_bytes = needed_bytes


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """Upright "RGB", "RGBA" or "L" pixels of the wanted size, and the original size (upright too)."""

    image: Image.Image
    original_width_px: int
    original_height_px: int


def decode_image(data: bytes, max_area_px: int, max_bytes: int, *, keep_alpha: bool = False) -> DecodedImage:
    """Decode the first frame to pixels in sRGB, scaled down to at most max_area_px: RGB on white where it is
    transparent, or RGBA of an image with alpha if that is kept.

    Raises ImageError, and TooMuchMemory before it decodes an image that would take more than about max_bytes. Pillow
    may raise anything else for hostile bytes.
    """
    facts = inspect(data)
    with _open_image(data, facts, max_bytes) as image:
        width, height = image.size
        scale = min(1.0, (max_area_px / (width * height)) ** 0.5)
        target = (max(1, int(width * scale)), max(1, int(height * scale)))
        image.draft(image.mode, target)
        factor = max(1, min(image.width // target[0], image.height // target[1]))
        if image.width * image.height <= SHRUNK_FIRST_PX:
            factor = 1
        profile = embedded_profile(image, facts)
        needed_bytes = _image_bytes(image, facts, factor, target) + conversion_bytes(profile)
        _check_memory(len(data) + needed_bytes, max_bytes)
        image.load()
        method = _turn_of(image)
        conversion = to_srgb(image, profile or profile_of_camera(image))
        rgb = _to_colours(image, factor, conversion, keep_alpha=keep_alpha)
        if rgb is not image:
            image.close()
    rgb.info.clear()  # a profile that no longer holds would be written with the pixels
    if method is not None:
        rgb = rgb.transpose(method)
        width, height, target = (*_turned_size((width, height), method), _turned_size(target, method))
    if scale < 1:
        rgb = rgb.resize(target, Image.Resampling.LANCZOS, reducing_gap=3.0)
    return DecodedImage(rgb, width, height)


def decode_mask(data: bytes, original: tuple[int, int], target: tuple[int, int], max_bytes: int) -> DecodedImage:
    """Decode the inpainting mask to "L" pixels of the target size: 255 paints, 0 keeps, a value between blends. What is
    nearly black keeps, what is nearly white paints, in every format. Raises as decode_image does.

    Where alpha differs, alpha 0 is painted, as in OpenAI's API; else white is. Profiles are not applied: a mask is
    numbers, not colours. `original` is the original size of the first reference, which the mask must have.
    """
    facts = inspect(data)
    with _open_image(data, facts, max_bytes) as image:
        if sorted(image.size) != sorted(original):
            raise _wrong_mask_size(image.size, original)
        _check_memory(len(data) + _frame_bytes(image, facts) + 2 * image.width * image.height, max_bytes)
        image.load()
        method = _turn_of(image)
        mask = _find_painted(image)
        image.close()
    if method is not None:
        mask = mask.transpose(method)
    if mask.size != original:
        raise _wrong_mask_size(mask.size, original)
    most = max(level for level, count in enumerate(mask.histogram()) if count)
    if most < NOISE_LEVELS:  # programs write masks of 0 and 1, which blend in 1 of 255
        found = f" At most, it paints {most} of 255." if most else ""
        raise ImageError(f"The mask leaves nothing to paint: make the part to change transparent, or white.{found}")
    mask = mask.point(SNAPPED)
    if mask.size != target:
        mask = mask.resize(target, Image.Resampling.BILINEAR)
    return DecodedImage(mask, *original)


@contextmanager
def _open_image(data: bytes, facts: ImageFileInfo, max_bytes: int) -> Iterator[Image.Image]:
    """Open the image, with only its header read. The errors that Pillow raises for bad files become ImageErrors."""
    if not data:
        raise ImageError("The file is empty.")
    if facts.canvas_px <= MAX_PX:  # else the size is reported below
        _check_memory(len(data) + WEBP_BYTES_PER_PX * facts.canvas_px, max_bytes)  # opening one takes its canvases
    if facts.bad_profile is not None:
        data = data[: facts.bad_profile.start] + data[facts.bad_profile.stop :]
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_PX:
                limit = f"at most {MAX_PX // 1_000_000} megapixels are accepted"
                raise ImageError(f"The image is {image.width}x{image.height}; {limit}.", "image_too_large")
            yield image
    except Image.DecompressionBombError as error:
        raise ImageError(f"The image is too large: {error}", "image_too_large") from error
    except UnidentifiedImageError as error:
        starts = (data.lstrip()[:8], data[4:12])
        kind = next((kind for start, kind in FOREIGN.items() if any(each.startswith(start) for each in starts)), None)
        is_foreign = kind is not None and kind not in FORMATS
        named = f"The file is {kind}, which is not read here. Save it as" if is_foreign else "The file can't be read as"
        raise ImageError(f"{named} a PNG, JPEG, WebP, AVIF or GIF image.") from error
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError) as error:
        raise ImageError(f"The image is corrupt or truncated: {error}.") from error


def _turn_of(image: Image.Image) -> Image.Transpose | None:
    """Return how a loaded image is turned upright; None, too, if its EXIF can't be read: viewers show it as it is."""
    try:
        return UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except EXIF_ERRORS:
        return None


def _check_memory(needed_bytes: int, max_bytes: int) -> None:
    if needed_bytes > max_bytes:
        raise TooMuchMemory(needed_bytes)


def _frame_bytes(image: Image.Image, facts: ImageFileInfo) -> int:
    """Return the bytes of the decoded frame, and of the data that the decoder keeps with it."""
    area_px = image.width * image.height
    if facts.canvas_px:
        return WEBP_BYTES_PER_PX * area_px
    return facts.coefficient_bytes + SMALL_MODES.get(image.mode, 4) * area_px


def _image_bytes(image: Image.Image, facts: ImageFileInfo, factor: int, target: tuple[int, int]) -> int:
    """Return the most bytes that a step takes: decoding and flattening, turning, or scaling in two passes."""
    width, height = -(-image.width // factor), -(-image.height // factor)
    flat = 4 * width * height
    decoding = _frame_bytes(image, facts) + (flat if factor > 1 or _needs_flattening(image) else 0)
    scaling = flat + 4 * target[0] * (height + target[1]) if (width, height) != target else 0
    return max(decoding, 2 * flat, scaling)


def _needs_flattening(image: Image.Image) -> bool:
    return image.mode != "RGB" or "transparency" in image.info


def _to_colours(image: Image.Image, factor: int, conversion: ToSrgb | None, *, keep_alpha: bool) -> Image.Image:
    """Convert an image to RGB pixels in sRGB on white, or to RGBA, smaller by the factor."""
    if not _needs_flattening(image):
        if conversion is not None:
            conversion.apply_in_place(image)
        return image.reduce(factor) if factor > 1 else image
    if keep_alpha and _has_alpha(image):
        return _in_strips(image, "RGBA", factor, lambda strip: _to_rgba(strip, conversion))
    return _in_strips(image, "RGB", factor, lambda strip: _to_rgb(strip, conversion))


def _in_strips(
    image: Image.Image, mode: str, factor: int, convert: Callable[[Image.Image], Image.Image]
) -> Image.Image:
    """Return the converted image, smaller by the factor. Only a strip of it exists in the modes between."""
    result = Image.new(mode, (-(-image.width // factor), -(-image.height // factor)))
    rows = max(1, STRIP_PX // image.width // factor) * factor
    for top in range(0, image.height, rows):
        strip = convert(image.crop((0, top, image.width, min(image.height, top + rows))))
        result.paste(strip.reduce(factor) if factor > 1 else strip, (0, top // factor))
    return result


def _has_alpha(image: Image.Image) -> bool:
    """Return whether an image has alpha. 16 bits of gray with a transparent one have none: that is metadata that Pillow
    can't apply."""
    return image.mode in ALPHA_MODES or ("transparency" in image.info and image.mode != "I;16")


def _to_rgb(image: Image.Image, conversion: ToSrgb | None) -> Image.Image:
    if not _has_alpha(image):
        return _colours(image, conversion)
    rgba = _to_rgba(image, conversion)
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _to_rgba(image: Image.Image, conversion: ToSrgb | None) -> Image.Image:
    rgba = _colours(image, conversion)
    rgba.putalpha(image.convert("RGBA").getchannel("A"))
    return rgba


def _colours(image: Image.Image, conversion: ToSrgb | None) -> Image.Image:
    return eight_bits(image).convert("RGB") if conversion is None else conversion.apply(image)


def _find_painted(image: Image.Image) -> Image.Image:
    """Return where a mask paints, 0 to 255, by its content and not by its mode: programs write opaque alpha with images
    in black and white, and encoders drop it. A mask that is transparent everywhere paints everywhere."""
    if _has_alpha(image):
        alpha = _in_strips(image, "L", 1, lambda strip: strip.convert("RGBA").getchannel("A"))
        least, most = alpha.getextrema()
        if least != most or most == 0:
            return ImageOps.invert(alpha)
        del alpha
    return _in_strips(image, "L", 1, lambda strip: eight_bits(strip).convert("RGB").convert("L"))


def _turned_size(size: tuple[int, int], method: Image.Transpose) -> tuple[int, int]:
    return (size[1], size[0]) if method in SIDEWAYS else size


def _wrong_mask_size(size: tuple[int, int], original: tuple[int, int]) -> ImageError:
    sizes = f"{size[0]}x{size[1]}, the first reference image {original[0]}x{original[1]}"
    return ImageError(f"The mask must have the size of the image: the mask is {sizes}.")
