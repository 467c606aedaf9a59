"""Images for Pillow: those of messages, and those with an alpha channel: what they show on white, and the files that
keep it. The server's own process does not import this: its images stay bytes."""

import hashlib

import numpy as np
from PIL import Image

from pipelines.protocol.images import Background, RawImage


def to_image(image: RawImage) -> Image.Image:
    """Return the same pixels for Pillow, in the mode "RGB" or "L"."""
    return Image.frombytes(image.mode, (image.width_px, image.height_px), image.data)


def pixels_digest(image: RawImage) -> str:
    """Return a SHA-256 of the size and the pixels: the same for every file that shows the same."""
    digest = hashlib.sha256(f"{image.width_px}x{image.height_px} {image.mode}\n".encode())
    digest.update(image.data)
    return digest.hexdigest()


WHITE = (255, 255, 255)


class NoTransparency(Exception):
    """A transparent image was asked for, and one without an alpha channel was drawn."""

    def __init__(self) -> None:
        super().__init__("it draws no transparent backgrounds")


def has_alpha(image: Image.Image) -> bool:
    """Return whether an image says how transparent its pixels are."""
    return image.has_transparency_data


def flattened(image: Image.Image) -> Image.Image:
    """Return an image as it looks on white, in the mode "RGB". Its file is read, and may be closed afterwards."""
    image.load()
    if not has_alpha(image):
        return image if image.mode == "RGB" else image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, WHITE)
    white.paste(image, mask=image.getchannel("A"))
    return white


def with_background(image: Image.Image, background: Background) -> Image.Image:
    """Return an image in the mode of its file: "RGBA" where the background is transparent, or "RGB", on white. Raises
    NoTransparency."""
    if background == "opaque":
        return flattened(image)
    if not has_alpha(image):
        raise NoTransparency
    return image.convert("RGBA")


def with_alpha(shown: Image.Image, alpha: Image.Image) -> Image.Image:
    """Return the transparent image that looks like `shown` on white, with this alpha channel, of mode "L": less
    transparent where a colour is darker than white can be behind it. A pixel that is fully transparent is white."""
    below_white = 255 - np.asarray(shown.convert("RGB"), dtype=np.float32)
    opacity = np.maximum(np.asarray(alpha, dtype=np.float32), below_white.max(axis=2))[:, :, None]
    colours = 255 - np.divide(255 * below_white, opacity, out=np.zeros_like(below_white), where=opacity > 0)
    return Image.fromarray(np.concatenate([colours.round(), opacity], axis=2).astype(np.uint8))
