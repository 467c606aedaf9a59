"""Weights between the host and a GPU, without waiting for the GPU's other work and without making it wait.

A plain copy from pageable memory is queued on the default stream: it waits until all kernels that were launched before
have run, once for every tensor. Here bytes go through two page-locked buffers on a stream of their own: while the GPU
copies one, the host fills the other from the disk's pages. Without a GPU the same code copies from memory to memory.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
from torch import nn

from pipelines.checkpoints.memory.host_bytes import CACHED_MIB


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


BUFFER_BYTES: Final = CACHED_MIB * 2**20  # the allocator keeps such a block for the next copy, and frees larger ones


class StagedCopy:
    """Copies tensors to one device, or from it to the host. For one thread; it holds its buffers while it lives."""

    def __init__(self, target: torch.device, gpu: torch.device | None, buffer_bytes: int = BUFFER_BYTES) -> None:
        """Allocate the buffers. `gpu` is the one that is copied to or from; None copies within the host's memory."""
        self._target = target
        self._gpu = gpu
        self._stream = torch.cuda.Stream(gpu) if gpu is not None else None  # type: ignore[no-untyped-call]
        self._buffers = [torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=gpu is not None) for _ in range(2)]
        self._events: list[torch.cuda.Event | None] = [None, None]  # when the GPU is done with each buffer
        self._next = 0
        self._leaves_gpu = gpu is not None and target.type == "cpu"
        self._arriving: deque[tuple[int, torch.Tensor]] = deque()  # buffers, and what they are for

    def move(self, module: nn.Module) -> None:
        """Move all parameters and buffers of a module that are elsewhere, in place; tied ones stay tied. Blocks."""
        self._wait_for_kernels()
        copies: dict[int, torch.Tensor] = {}
        for tensor in _tensors([module]):
            if tensor.device.type != self._target.type or self._gpu is None:
                copies.setdefault(id(tensor), self.copy(tensor.detach()))
        self.finish()
        for part in module.modules():
            for parameter in part._parameters.values():
                if parameter is not None and id(parameter) in copies:
                    parameter.data = copies[id(parameter)]
            for name, buffer in part._buffers.items():
                if buffer is not None and id(buffer) in copies:
                    part._buffers[name] = copies[id(buffer)]

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor on the target, with the same strides. It is complete after `finish`."""
        with self._on_stream():
            target = torch.empty_like(source, device=self._target)
        if self._gpu is not None and target.is_cuda:
            target.record_stream(torch.cuda.default_stream(self._gpu))  # runs use it there
        if source.stride() != target.stride():  # parts of a larger tensor, or overlapping
            return target.copy_(source)
        for begin, end in self._chunks(source):
            if self._leaves_gpu:
                self._fetch(_bytes(source)[begin:end], _bytes(target)[begin:end])
                continue
            buffer = self._take_buffer()[: end - begin]
            buffer.copy_(_bytes(source)[begin:end])
            with self._on_stream():
                _bytes(target)[begin:end].copy_(buffer, non_blocking=True)
                self._record()
        return target

    def _fetch(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Queue a piece for the host. While the GPU fills its buffer, the one before is emptied."""
        self._next = 1 - self._next
        with self._on_stream():
            self._buffers[self._next][: len(source)].copy_(source, non_blocking=True)
            self._record()
        self._arriving.append((self._next, target))
        if len(self._arriving) == len(self._buffers):
            self._empty_buffer()

    def _empty_buffer(self) -> None:
        """Empty the buffer that was filled longest ago into its target."""
        number, target = self._arriving.popleft()
        if (event := self._events[number]) is not None:
            event.synchronize()
        target.copy_(self._buffers[number][: len(target)])

    def finish(self) -> None:
        """Wait until everything has arrived."""
        while self._arriving:
            self._empty_buffer()
        self._wait_for_stream()
        self._events = [None, None]

    def _chunks(self, source: torch.Tensor) -> Iterator[tuple[int, int]]:
        size = len(self._buffers[0])
        return ((begin, min(begin + size, source.nbytes)) for begin in range(0, source.nbytes, size))

    def _take_buffer(self) -> torch.Tensor:
        """Return the buffer that was used longer ago, once the GPU is done with it."""
        self._next = 1 - self._next
        if (event := self._events[self._next]) is not None:
            event.synchronize()
        return self._buffers[self._next]

    def _record(self) -> None:
        if self._stream is not None:
            self._events[self._next] = self._stream.record_event()

    def _wait_for_kernels(self) -> None:
        """Wait for the kernels that are queued now: they may still write weights that are copied from the GPU, such as
        those that were just quantized."""
        if self._stream is not None and self._leaves_gpu:
            self._stream.wait_stream(torch.cuda.default_stream(self._gpu))

    def _wait_for_stream(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _tensors(modules: Iterable[nn.Module]) -> Iterator[torch.Tensor]:
    for module in modules:
        yield from module.parameters()
        yield from module.buffers()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """View a dense tensor's bytes in the order in which they are in memory."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def move_modules(modules: list[nn.Module], target: torch.device) -> None:
    """Move modules between the host and a device, in place. Blocks; call it on a thread that draws nothing."""
    gpus = {each.device for each in _tensors(modules) if each.is_cuda} | ({target} if target.type == "cuda" else set())
    if not gpus:
        for module in modules:
            module.to(target)
        return
    largest = max((each.nbytes for each in _tensors(modules)), default=0)
    staged = StagedCopy(target, gpus.pop(), min(BUFFER_BYTES, max(1, largest)))
    for module in modules:
        staged.move(module)
