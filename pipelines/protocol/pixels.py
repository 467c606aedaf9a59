"""Pictures of messages for Pillow. The server's own process does not import this: its pictures stay bytes."""

from PIL import Image

from pipelines.protocol.images import Picture


def to_image(picture: Picture) -> Image.Image:
    """Return the same pixels for Pillow, in the mode "RGB" or "L"."""
    return Image.frombytes(picture.mode, (picture.width_px, picture.height_px), picture.data)
