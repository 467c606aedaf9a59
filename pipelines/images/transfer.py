"""A picture on its way from the device to the host: one copy of bytes, which nobody waits for during a turn."""

from collections.abc import Sequence

import torch
from PIL import Image


class Transfer:
    """A tensor's copy on the host. On a GPU the copy is queued behind the kernels that compute the tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._host = tensor
        if tensor.device.type == "cuda":
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def wait(self) -> torch.Tensor:
        """The copy, once it is there. Blocks."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host


class ReturnedPicture:
    """What a pipeline call returned: a float tensor of shape (1, 3, height, width), 0 to 1, or a list of one Pillow
    image."""

    def __init__(self, returned: torch.Tensor | Sequence[Image.Image]) -> None:
        self._image: Image.Image | None = None
        self._transfer: Transfer | None = None
        if isinstance(returned, torch.Tensor):
            levels = returned[0].float().mul(255).round()  # as diffusers' VaeImageProcessor rounds for Pillow
            self._transfer = Transfer(levels.to(torch.uint8).permute(1, 2, 0).contiguous())
        else:
            self._image = returned[0]

    def image(self) -> Image.Image:
        """The picture. Blocks until it has arrived."""
        if self._image is None and self._transfer is not None:
            self._image = Image.fromarray(self._transfer.wait().numpy())
        if self._image is None:
            raise RuntimeError("a pipeline returned no picture")
        return self._image
