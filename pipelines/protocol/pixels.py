"""Images of messages for Pillow. The server's own process does not import this: its images stay bytes."""

import hashlib

from PIL import Image

from pipelines.protocol.images import RawImage


def to_image(image: RawImage) -> Image.Image:
    """Return the same pixels for Pillow, in the mode "RGB" or "L"."""
    return Image.frombytes(image.mode, (image.width_px, image.height_px), image.data)


def pixels_digest(image: RawImage) -> str:
    """Return a SHA-256 of the size and the pixels: the same for every file that shows the same."""
    digest = hashlib.sha256(f"{image.width_px}x{image.height_px} {image.mode}\n".encode())
    digest.update(image.data)
    return digest.hexdigest()
