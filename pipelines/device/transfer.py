"""A tensor on its way from the device to the host: one copy, which nobody waits for while the device computes."""

import torch


class Transfer:
    """A tensor's copy on the host. On a GPU the copy is queued behind the kernels that compute the tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._host = tensor
        if tensor.device.type == "cuda":
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.current_stream().record_event()

    def wait(self) -> torch.Tensor:
        """Return the copy, once it is there. Blocks."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host


def sum_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor, on its device: finite if all of its numbers are, but for huge ones."""
    return tensor.sum(dtype=torch.float32)
