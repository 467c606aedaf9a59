"""Weights through two small buffers: every bit arrives, and what is tied or strided stays so."""

import pytest
import torch
from torch import nn

from pipelines.device.staged_copy import StagedCopy, move_modules

CPU = torch.device("cpu")


def copier(buffer_bytes: int = 64, *, leaves_gpu: bool = False) -> StagedCopy:
    """`leaves_gpu`: as it copies to the host, where a buffer is emptied while the next one is filled."""
    staged = StagedCopy(CPU, None, buffer_bytes)
    staged._leaves_gpu = leaves_gpu
    return staged


@pytest.mark.parametrize("leaves_gpu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5, 7), (64,), (65,)])
def test_every_byte_of_a_tensor_arrives(shape: tuple[int, ...], dtype: torch.dtype, leaves_gpu: bool) -> None:
    source = torch.randn(shape).to(dtype)
    staged = copier(leaves_gpu=leaves_gpu)
    copied = staged.copy(source)
    staged.finish()
    assert copied.dtype == dtype
    assert copied.shape == source.shape
    assert torch.equal(copied.view(torch.uint8) if shape else copied, source.view(torch.uint8) if shape else source)


def test_strides_are_kept_and_parts_of_larger_tensors_are_copied_alone() -> None:
    for source in (
        torch.randn(4, 8, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(6, 9).t(),
        torch.randn(6, 9)[:, 2:4],
        torch.randn(5).expand(3, 5),
    ):
        copied = copier().copy(source)
        assert torch.equal(copied, source)
    channels_last = torch.randn(4, 8, 3, 3).to(memory_format=torch.channels_last)
    assert copier().copy(channels_last).is_contiguous(memory_format=torch.channels_last)


class Tied(nn.Module):
    """With a tied weight, a buffer that two modules share, and one that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(5, 5), nn.Linear(5, 5)
        self.other.weight = self.one.weight
        self.register_buffer("table", torch.arange(40))
        self.one.register_buffer("table", self.table)
        self.register_buffer("nothing", None)


def test_pieces_of_several_tensors_share_the_two_buffers_on_their_way_to_the_host() -> None:
    """While the last piece of one is on its way, the first of the next is queued."""
    staged = copier(leaves_gpu=True)
    sources = [torch.randn(size) for size in (1, 16, 33, 5, 50)]
    copies = [staged.copy(source) for source in sources]
    assert len(staged._arriving) == 1
    staged.finish()
    assert all(torch.equal(copied, source) for copied, source in zip(copies, sources, strict=True))


def test_a_module_is_moved_in_place_and_what_is_tied_stays_tied() -> None:
    module = Tied()
    inputs = torch.randn(2, 5)
    before, pointer, weight = module.other(module.one(inputs)), module.one.weight.data_ptr(), module.one.weight
    copier().move(module)
    assert torch.equal(module.other(module.one(inputs)), before)
    assert module.one.weight is module.other.weight is weight
    assert module.one.weight.data_ptr() != pointer, "nothing was copied"
    assert module.one.table is module.table
    assert torch.equal(module.table, torch.arange(40))


def test_weights_under_inference_mode_are_moved_too() -> None:
    with torch.inference_mode():
        module = nn.Linear(30, 30)
        inputs = torch.randn(2, 30)
        before = module(inputs)
        copier().move(module)
        assert torch.equal(module(inputs), before)


def test_without_a_gpu_nothing_is_moved() -> None:
    module = nn.Linear(5, 5)
    pointer = module.weight.data_ptr()
    move_modules([module], CPU)
    assert module.weight.data_ptr() == pointer
