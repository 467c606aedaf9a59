"""Images of messages for Pillow. The server's own process does not import this: its images stay bytes."""

from PIL import Image

from pipelines.protocol.images import RawImage


def to_image(image: RawImage) -> Image.Image:
    """Return the same pixels for Pillow, in the mode "RGB" or "L"."""
    return Image.frombytes(image.mode, (image.width_px, image.height_px), image.data)
