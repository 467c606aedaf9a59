"""Whether an image is one: of numbers, of more than one colour, and another one where something was changed."""

import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from pipelines.protocol.images import EncodedImage
from pipelines.protocol.pixels import flattened

NOT_NUMBERS: Final = "its images are not numbers (NaN or infinite)"
ONE_COLOUR: Final = "its images have one colour"
NO_CHANGE: Final = "it changes nothing"
ROUNDING: Final = 1  # of 255, by which kernels may differ from call to call, and images that share passes
WIDER: Final = {  # what may give finite images: half precision overflows in some codecs and text encoders
    torch.float16: 'runtime.dtype = "bfloat16" or "float32"',
    torch.bfloat16: 'runtime.dtype = "float32"',
}


class InvalidImage(Exception):
    """A drawn image has values that are not finite."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Note a remedy by `dtype`, in which the checkpoint computes."""
        self.wider = WIDER.get(dtype)
        super().__init__(f"{NOT_NUMBERS}: {self.remedy}")

    @property
    def remedy(self) -> str:
        """Return the advice for the checkpoint's operator."""
        if self.wider is not None:
            return f"{self.wider} may help"
        return "it computes in float32 already, so its files may be damaged: fetch them again"


def is_single_colour(image: EncodedImage, box: tuple[int, int, int, int] | None = None) -> bool:
    """Return whether an image has one colour, or its part within left, top, right and bottom."""
    with Image.open(io.BytesIO(image.data)) as opened:
        pixels = np.asarray(flattened(opened).crop(box))
    return bool((pixels == pixels[0, 0]).all())


def difference(one: EncodedImage, other: EncodedImage) -> float:
    """Return the mean absolute difference of two images' channels, 0 to 255."""
    return float(_differences(one, other).mean())


def why_not_same(drawn: Sequence[EncodedImage], again: Sequence[EncodedImage]) -> str | None:
    """Return why the images of one seed, drawn twice, are not the same; None if they are, but for rounding."""
    most = max(int(_differences(one, other).max()) for one, other in zip(drawn, again, strict=True))
    return f"its noise is another each time: {most} of 255 apart" if most > ROUNDING else None


def _differences(one: EncodedImage, other: EncodedImage) -> NDArray[Any]:
    first, second = (np.asarray(flattened(Image.open(io.BytesIO(each.data))), np.int64) for each in (one, other))
    distance: NDArray[Any] = np.absolute(first - second)
    return distance
