"""Pictures on their way from the device to the host: one copy of bytes, which nobody waits for during a turn."""

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


class Pictures:
    """What a pipeline call returned: a float tensor of shape (rows, 3, height, width), 0 to 1, or Pillow's images."""

    def __init__(self, returned: torch.Tensor | Sequence[Image.Image]) -> None:
        self._images: Sequence[Image.Image] | None = None
        self._transfer: Transfer | None = None
        if isinstance(returned, torch.Tensor):
            levels = returned.float().mul(255).round()  # as diffusers' VaeImageProcessor rounds for Pillow
            self._transfer = Transfer(levels.to(torch.uint8).permute(0, 2, 3, 1).contiguous())
        else:
            self._images = returned

    def images(self) -> list[Image.Image]:
        """One for each row. Blocks until they have arrived."""
        if self._images is None and self._transfer is not None:
            self._images = [Image.fromarray(picture) for picture in self._transfer.wait().numpy()]
        return list(self._images or ())
