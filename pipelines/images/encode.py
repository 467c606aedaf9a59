"""From pixels to an image file with the generation parameters as metadata."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipelines.protocol.finished_image import encode_file
from pipelines.protocol.images import EncodedImage, Encoding


def encode(pixels: NDArray[np.uint8], encoding: Encoding, metadata: Mapping[str, Any], seed: int) -> EncodedImage:
    """Encode pixels of shape (height, width, 3), or 4 with an alpha channel. Raises NoTransparency."""
    data = encode_file(Image.fromarray(pixels), encoding, {**metadata, "seed": seed})
    height, width = pixels.shape[:2]
    return EncodedImage(data, f"image/{encoding.format}", width, height, seed)
