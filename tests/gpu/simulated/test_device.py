"""The simulated GPU itself: it breaks where CUDA's rules are broken, and reports what would be undefined there."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from pipelines.device import staged_copy
from pipelines.device.staged_copy import StagedCopy, Transfer
from pipelines.images.drawing.returned_image import ReturnedImage
from tests.simulated_gpu import device

GPU, HOST = torch.device("cuda"), torch.device("cpu")
BUFFER = 4096  # bytes: several pieces for each of the tensors here


def to_gpu() -> bool:
    module = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
    expected = [weight.detach().clone() for weight in module.parameters()]
    with patch.object(staged_copy, "BUFFER_BYTES", BUFFER):
        StagedCopy(GPU, GPU, BUFFER).move(module)
    module(torch.ones(1, 64, device=GPU))
    return all(torch.equal(weight.cpu(), each) for weight, each in zip(module.parameters(), expected, strict=True))


def to_host() -> bool:
    module = nn.Sequential(*[nn.Linear(64, 64, device=GPU) for _ in range(4)])
    with torch.no_grad():
        for weight in module.parameters():
            weight.fill_(3.0)
    StagedCopy(HOST, GPU, BUFFER).move(module)
    return all(bool((weight == 3).all()) for weight in module.parameters())


def image() -> bool:
    values = torch.rand(1, 3, 32, 32, device=GPU)
    returned = np.asarray(ReturnedImage(values).image())
    return np.array_equal(returned, values[0].cpu().mul(255).round().to(torch.uint8).permute(1, 2, 0).numpy())


def freed() -> bool:
    """A tensor that was copied on the side stream, used on the default one, and freed."""
    copier = StagedCopy(GPU, GPU, BUFFER)
    copied = copier.copy(torch.ones(5000))
    copier.finish()
    doubled = copied * 2
    del copied
    return bool((doubled.cpu() == 2).all())


def _take_at_once(self: StagedCopy) -> torch.Tensor:
    self._next = 1 - self._next
    return self._buffers[self._next]


def _empty_at_once(self: StagedCopy) -> None:
    number, target = self._arriving.popleft()
    target.copy_(self._buffers[number][: len(target)])


def _do_nothing(*_: object) -> None:
    pass


MUTATIONS: dict[str, tuple[Callable[[], bool], AbstractContextManager[object], str]] = {
    "a buffer is filled before the GPU has read it":
        (to_gpu, patch.object(StagedCopy, "_take_buffer", _take_at_once), "values"),
    "nobody waits for the side stream":
        (to_gpu, patch.object(StagedCopy, "_wait_for_stream", _do_nothing), "race"),
    "weights leave before kernels have written them":
        (to_host, patch.object(StagedCopy, "_wait_for_kernels", _do_nothing), "race"),
    "a buffer is emptied before the GPU has filled it":
        (to_host, patch.object(StagedCopy, "_empty_buffer", _empty_at_once), "values"),
    "an image is read before it has arrived":
        (image, patch.object(Transfer, "wait", lambda self: self._host), "values"),
    "no record_stream":
        (freed, patch.object(torch.Tensor, "record_stream", _do_nothing), "free"),
}  # fmt: skip


def observed(work: Callable[[], bool], mutation: AbstractContextManager[object]) -> set[str]:
    """Return what was wrong: "values", and the kinds of faults that were reported."""
    torch.manual_seed(0)
    device.log.take()
    with mutation:
        right = work()
    torch.cuda.synchronize()
    faults = {str(seen.kind) for seen in device.log.faults()}
    device.log.take()
    return faults if right else faults | {"values"}


@pytest.mark.parametrize("work", [to_gpu, to_host, image, freed])
def test_as_the_engine_is_nothing_is_wrong(work: Callable[[], bool]) -> None:
    assert observed(work, nullcontext()) == set()


@pytest.mark.parametrize("name", MUTATIONS)
def test_one_wait_less_is_found(name: str) -> None:
    work, mutation, expected = MUTATIONS[name]
    assert expected in observed(work, mutation)


def test_operands_are_on_one_device() -> None:
    on_gpu = torch.ones(3, device=GPU)
    assert (on_gpu * torch.tensor(2.0)).sum().item() == 6  # as on CUDA, a number may be the host's
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
        on_gpu + torch.ones(3)
    with pytest.raises(TypeError, match="to copy the tensor to host memory"):
        on_gpu.numpy()
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.randn(3, device=GPU, generator=torch.Generator())


def test_two_gpus_are_two_devices(gpu: Any) -> None:
    count = gpu.device_count()
    gpu.set_device_count(2)
    try:
        second = torch.ones(3, device="cuda:1")
        assert torch.equal(second.to("cuda:0").cpu(), torch.ones(3))
        with pytest.raises(RuntimeError, match="at least two devices, cuda:1 and cuda:0"):
            second + torch.ones(3, device="cuda:0")
    finally:
        gpu.set_device_count(count)


def test_fresh_memory_is_not_zero_and_a_full_device_refuses(gpu: Any) -> None:
    assert torch.empty(5, device=GPU).isnan().all()
    free, total = torch.cuda.mem_get_info()
    gpu.set_taken(0, total - 2**20)  # by other processes
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**21, dtype=torch.uint8, device=GPU)
        assert torch.cuda.mem_get_info()[0] < 2**20
    finally:
        gpu.set_taken(0, 0)
    assert torch.cuda.mem_get_info()[0] == free


def test_an_index_out_of_range_is_a_sticky_error(gpu: Any) -> None:
    with pytest.raises(torch.AcceleratorError, match="device-side assert"):
        torch.ones(3, device=GPU)[torch.tensor([7], device=GPU)]
    with pytest.raises(torch.AcceleratorError, match="device-side assert"):
        torch.ones(3, device=GPU)
    gpu.revive()
    assert torch.ones(3, device=GPU).sum().item() == 3


THREADS = """
import sys, threading, torch
from tests.simulated_gpu import device
device.install()
sys.setswitchinterval(1e-6)
shared = torch.ones(64, device="cuda")

def work():
    for _ in range(2000):
        local = shared * 2
        host = torch.empty(64, pin_memory=True)
        host.copy_(local, non_blocking=True)
        torch.cuda.Stream()
        torch.cuda.memory_allocated()

threads = [threading.Thread(target=work) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
print("all ended")
"""


def test_threads_that_use_one_tensor_do_not_lock_each_other_out() -> None:
    """A copy of a tensor that Python holds takes the GIL: who waits for the device's lock must not keep that."""
    ended = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=300, check=False)
    assert ended.stdout == "all ended\n", ended.stderr
