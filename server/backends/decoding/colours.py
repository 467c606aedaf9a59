"""Converts a file's colours to sRGB, as viewers show them, by LittleCMS.

The cost of a profile is bounded: its size here, its memory and time by the decoder's limits. A profile that can't be
used changes nothing, as in viewers.
"""

import io
import struct
from dataclasses import dataclass
from typing import Final

from PIL import ExifTags, Image, ImageChops, ImageCms

from server.backends.decoding import profiles
from server.backends.decoding.bounds import ImageFileInfo

GRAY_MODES = ("1", "L", "LA", "I;16")
DEVICE_CLASSES = {"mntr", "scnr", "prtr", "spac"}  # of profiles for the colours of images
PROFILE_COPIES: Final = 6  # of a profile's bytes, while LittleCMS reads its tables
TABLE_BYTES: Final = 4_000_000  # of a transform of four inks
MAX_OPERATIONS = 100  # of a multi-process element, or segments of its curve
CHECK_LEVELS = bytes(range(0, 256, 15))
COLOR_SPACE, ADOBE_RGB = 0xA001, 2  # of EXIF: not of its standard, but written by cameras
EXIF_ERRORS = (OSError, ValueError, SyntaxError, TypeError, KeyError, OverflowError, struct.error)  # for bad EXIF
INTEROPERABILITY_INDEX, OPTIONAL_COLOURS = 1, "R03"  # DCF's name for Adobe RGB


@dataclass(frozen=True, slots=True)
class ToSrgb:
    """Converts pixels of one mode, or of another that Pillow turns into it."""

    mode: str
    transform: ImageCms.ImageCmsTransform

    def apply(self, image: Image.Image) -> Image.Image:
        """Convert an image to RGB in sRGB, without its alpha."""
        pixels = image if image.mode == self.mode else eight_bits(image).convert(self.mode)
        return self.transform.apply(pixels)

    def apply_in_place(self, image: Image.Image) -> None:
        """Convert an RGB image in place, as `apply` does with a copy."""
        self.transform.apply_in_place(image)


def embedded_profile(image: Image.Image, facts: ImageFileInfo) -> bytes | None:
    """Return the ICC profile of a file, or one that follows its chunks, by the order of the PNG standard. Reads no
    pixels."""
    described = profiles.profile_from_cicp(facts.cicp)
    if described is not None:
        return described
    embedded = image.info.get("icc_profile")
    if isinstance(embedded, bytes) and embedded:
        return embedded
    if "srgb" in image.info or image.format != "PNG":
        return None
    gamma, chromaticities = image.info.get("gamma"), image.info.get("chromaticity")
    return None if gamma is None and chromaticities is None else profiles.profile_from_chunks(gamma, chromaticities)


def profile_of_camera(image: Image.Image) -> bytes | None:
    """Return the profile that the EXIF of a loaded image names, if its file says nothing else of its colours."""
    if not {"srgb", "gamma", "chromaticity", "icc_profile"}.isdisjoint(image.info.keys()):
        return None
    try:
        exif = image.getexif()
        details, interoperability = exif.get_ifd(ExifTags.IFD.Exif), exif.get_ifd(ExifTags.IFD.Interop)
    except EXIF_ERRORS:
        return None
    index = str(interoperability.get(INTEROPERABILITY_INDEX, "")).rstrip("\0")
    is_adobe = index == OPTIONAL_COLOURS or details.get(COLOR_SPACE) == ADOBE_RGB
    return profiles.adobe_rgb() if is_adobe else None


def conversion_bytes(profile: bytes | None) -> int:
    """Return the most memory that a conversion takes besides the pixels."""
    return 0 if profile is None else PROFILE_COPIES * len(profile) + TABLE_BYTES


def to_srgb(image: Image.Image, profile: bytes | None) -> ToSrgb | None:
    """Return the conversion of an image with this profile; None where it would change nothing, and for a profile that
    is broken or of other colours than the image's: viewers show the image without it."""
    if profile is None or _is_endless(profile):
        return None
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space, kind = source.profile.xcolor_space.strip(), source.profile.device_class.strip()
        mode = _input_mode(image, space)
        if mode is None or kind not in DEVICE_CLASSES:
            return None
        target = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
        intent = ImageCms.Intent.PERCEPTUAL
        conversion = ToSrgb(mode, ImageCms.buildTransform(source, target, mode, "RGB", renderingIntent=intent))
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None
    return conversion if _changes_colours(conversion) else None


def _is_endless(profile: bytes) -> bool:
    """Return whether a profile chains so many operations that a table of them would take long to compute. Real ones
    have ten."""
    for kind, start, length in ((b"mpet", 12, 4), (b"curf", 8, 2)):
        position = profile.find(kind)
        while position >= 0:
            if int.from_bytes(profile[position + start : position + start + length]) > MAX_OPERATIONS:
                return True
            position = profile.find(kind, position + 1)
    return False


def eight_bits(image: Image.Image) -> Image.Image:
    """Return 16 bits of gray as eight: Pillow's conversion would clip, not scale."""
    if image.mode.startswith(("I", "F")):
        return image.point(lambda value: value / 256).convert("L")
    return image


def _input_mode(image: Image.Image, space: str) -> str | None:
    """Return the mode that the transform takes, None if the profile does not fit. A gray image with a profile for RGB
    has equal red, green and blue."""
    if space == "CMYK":
        return "CMYK" if image.mode == "CMYK" else None
    if space == "GRAY":
        return ("I;16" if image.mode == "I;16" else "L") if image.mode in GRAY_MODES else None
    return "RGB" if space == "RGB" and image.mode != "CMYK" else None


def _changes_colours(conversion: ToSrgb) -> bool:
    """Return whether any colour moves by more than rounding: the many profiles of sRGB differ in their last bits."""
    if conversion.mode == "RGB":
        colours = bytes(level for r in CHECK_LEVELS for g in CHECK_LEVELS for b in CHECK_LEVELS for level in (r, g, b))
        check = Image.frombytes("RGB", (len(colours) // 3, 1), colours)
    elif conversion.mode == "L":
        check = Image.frombytes("L", (256, 1), bytes(range(256)))
    else:
        return True
    return max(ImageChops.difference(check.convert("RGB"), conversion.apply(check)).tobytes()) > 1
