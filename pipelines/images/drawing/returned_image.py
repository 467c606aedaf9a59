"""The output of a pipeline call, on its way from the device to the host: nobody waits for it during a turn."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from pipelines.device.staged_copy import Transfer, sum_of
from pipelines.images.tasks import UnsupportedTask
from pipelines.protocol.pixels import has_alpha

CHANNELS: Final = (1, 3, 4)
TOLERANCE: Final = 0.01  # of a value's range


class ReturnedImage:
    """The output of a pipeline call: a float tensor of shape (1, channels, height, width), 0 to 1, an array of shape
    (1, height, width, channels), as of old classes, or a list of one Pillow image. One channel is grey, three are
    colours, four have alpha beside them.

    Bytes have no NaN: it would become 0, black. So sums of the floats come along, `sums` with them: one is finite if
    all of its numbers are.
    """

    def __init__(
        self, returned: torch.Tensor | NDArray[np.float32] | Sequence[Image.Image], sums: Sequence[torch.Tensor] = ()
    ) -> None:
        self._image: Image.Image | None = None
        self._transfer: Transfer | None = None
        self._cut_off: Transfer | None = None
        if isinstance(returned, np.ndarray):
            returned = torch.from_numpy(returned).permute(0, 3, 1, 2)
        if isinstance(returned, torch.Tensor):
            sums = [*sums, sum_of(returned)]
            if returned.shape[1] not in CHANNELS:
                raise UnsupportedTask(f"its images have {returned.shape[1]} channels")
            values = returned[0].float()
            cut = values.clamp(0, 1)
            self._cut_off = Transfer((values - cut).abs().amax())
            levels = cut.mul(255).round()  # as diffusers' VaeImageProcessor for Pillow
            self._transfer = Transfer(levels.to(torch.uint8).permute(1, 2, 0).contiguous())
        else:
            self._image = returned[0]
        self._sums = [Transfer(each) for each in sums]

    @property
    def is_finite(self) -> bool:
        """Return whether the image is made of numbers. Blocks until it has arrived."""
        return all(math.isfinite(each.wait()) for each in self._sums)

    def image(self) -> Image.Image:
        """Return the image, of the mode "RGBA" if it has an alpha channel, else "RGB". Blocks until it has arrived.
        Raises UnsupportedTask for values that are no levels: some classes return the codec's own, from -1 to 1."""
        if self._cut_off is not None and self._cut_off.wait() > TOLERANCE:
            raise UnsupportedTask("its images have values that are not from 0 to 1")
        if self._image is None and self._transfer is not None:
            pixels = self._transfer.wait().numpy()
            self._image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        if self._image is None:
            raise RuntimeError("a pipeline returned no image")
        return self._image.convert("RGBA" if has_alpha(self._image) else "RGB")


def record_decoded_sums(pipeline: Any) -> list[torch.Tensor]:
    """Return a list to which a pipeline's call adds the sum of each image that its codec decodes. The images that a
    call returns show less: they are cut to the range of colours, infinite values too, and may be Pillow's. The pipeline
    must be of this call alone."""
    sums: list[torch.Tensor] = []
    processor: Any = getattr(pipeline, "image_processor", None)
    if not hasattr(processor, "postprocess") or "image_processor" in pipeline.components:
        return sums
    finish = processor.postprocess

    def postprocess(image: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(image, torch.Tensor):
            sums.append(sum_of(image))
        return finish(image, *args, **kwargs)

    processor.postprocess = postprocess
    return sums
