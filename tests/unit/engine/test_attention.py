"""The choice of a kernel for attention: held against plain arithmetic, timed, kept, and given up."""

import errno
import fcntl
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.device import attention
from pipelines.device.attention import TORCH, AttentionChooser, ChoiceRecords, Shape, left_to_torch
from pipelines.device.attention_kernels import (
    TOLERANCE,
    AttentionCall,
    Kernel,
    by_torch,
    installed_kernels,
    plain_torch,
    worst_error,
)

CPU = torch.device("cpu")


def tensors(
    tokens: int = 40,
    keys: int | None = None,
    heads: int = 4,
    key_heads: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(tokens)
    shapes = [(2, heads, tokens, 16), *[(2, key_heads or heads, keys or tokens, 16)] * 2]
    query, key, value = (torch.randn(shape, generator=random).to(dtype) for shape in shapes)
    return query, key, value


class Trials:
    """Times by kernel, in place of a GPU's clock, and how often each was timed."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = {TORCH: 1.0, **seconds}
        self.timed: list[str] = []

    def kernel(self, name: str, compute: Kernel = by_torch) -> Kernel:
        def computed(call: AttentionCall) -> torch.Tensor:
            self.last = name
            return compute(call)

        return computed

    def seconds_of(self, compute: Callable[[], object]) -> float:
        self.last = TORCH
        compute()
        self.timed.append(self.last)
        return self.seconds[self.last]


def chooser(trials: Trials, folder: Path | None = None, **kernels: Kernel) -> AttentionChooser:
    named = {name: trials.kernel(name, compute) for name, compute in kernels.items()}
    return AttentionChooser(CPU, ChoiceRecords(folder), named, trials.seconds_of)


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "TRIED_FLOP", 1.0)


@torch.inference_mode()
def answer(chosen: AttentionChooser, *operands: torch.Tensor, **options: Any) -> torch.Tensor:
    return chosen(*operands, **options)


def only(chosen: AttentionChooser) -> attention.Choice:
    (choice,) = chosen.choices.values()
    return choice


def refuse(call: AttentionCall) -> torch.Tensor:
    raise RuntimeError("Only supports head sizes of 64\nand a trace")


def test_the_fastest_right_kernel_answers_and_wrong_ones_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(slow=0.9, fast=0.5, wrong=0.1, refusing=0.1)
    chosen = chooser(
        trials, slow=by_torch, fast=lambda call: by_torch(call) * 1.0001, wrong=lambda call: by_torch(call) * 1.1,
        refusing=refuse,
    )  # fmt: skip
    operands = tensors()
    expected = plain_torch(*operands)
    assert torch.equal(answer(chosen, *operands), expected * 1.0001)
    assert only(chosen).kernel == "fast"
    assert only(chosen).refused["refusing"] == "Only supports head sizes of 64"
    assert set(only(chosen).wrong) == {"wrong"}
    assert "wrong" not in trials.timed
    assert "Attention by wrong is never used for float32, 4 heads of 16" in capsys.readouterr().err
    assert any("wrong is wrong here" in note for note in chosen.notes())
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", chosen)
    assert attention.attention_identity() == {"attention": "fast"}
    times = len(trials.timed)
    answer(chosen, *operands)
    assert len(trials.timed) == times


def test_a_gain_within_noise_leaves_torch_its_choice() -> None:
    chosen = chooser(Trials(other=0.98), other=lambda call: by_torch(call) + 1e-6)
    answer(chosen, *tensors())
    assert only(chosen).kernel == TORCH
    assert chosen.notes() == ()
    assert attention.attention_identity() == {}


def test_torchs_own_choice_can_be_the_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As cuDNN's was for few heads of keys on some chips."""
    monkeypatch.setattr(attention, "by_torch", lambda call: by_torch(call) * 0)
    trials = Trials(right=5.0, math=50.0)
    chosen = chooser(trials, right=by_torch, math=by_torch)
    operands = tensors(key_heads=2)
    assert torch.equal(answer(chosen, *operands, enable_gqa=True), plain_torch(*operands, enable_gqa=True))
    assert only(chosen).kernel == "right"
    assert set(only(chosen).wrong) == {TORCH}
    chosen = chooser(trials, right=refuse, math=by_torch)
    answer(chosen, *operands, enable_gqa=True)
    assert only(chosen).kernel == "math"


def test_a_choice_outlives_the_process_and_is_not_tried_again(tmp_path: Path) -> None:
    operands = tensors()
    answer(chooser(Trials(fast=0.5), tmp_path, fast=by_torch), *operands)
    later = Trials(fast=5.0)  # it would lose now
    again = chooser(later, tmp_path, fast=by_torch)
    answer(again, *operands)
    assert (only(again).kernel, later.timed) == ("fast", [])
    without = chooser(later, tmp_path)  # its package is gone
    assert torch.equal(answer(without, *operands), plain_torch(*operands))


def test_a_record_that_cannot_be_read_is_tried_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(chooser(Trials(), tmp_path), *tensors())
    (record,) = tmp_path.glob("*.json")
    record.write_text("[")
    chosen = chooser(Trials(fast=0.5), tmp_path, fast=by_torch)
    answer(chosen, *tensors())
    assert only(chosen).kernel == "fast"
    assert "can't be read, so attention is tried anew" in capsys.readouterr().err


def test_choices_that_cannot_be_kept_are_made_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    chosen = chooser(Trials(fast=0.5), tmp_path / "file" / "folder", fast=by_torch)
    answer(chosen, *tensors())
    assert only(chosen).kernel == "fast"


CRASH = """
import os, sys, torch
from pathlib import Path
from pipelines.device import attention
attention.TRIED_FLOP = 1.0
kernels = {"deadly": lambda call: os._exit(7)}
records = attention.ChoiceRecords(Path(sys.argv[1]))
chosen = attention.AttentionChooser(torch.device("cpu"), records, kernels, lambda compute: 1.0)
with torch.inference_mode():
    chosen(*(torch.ones(2, 4, 40, 16) for _ in range(3)))
"""


def test_a_kernel_that_ends_the_process_is_not_tried_again(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path)], check=False)
    assert ended.returncode == 7
    chosen = chooser(Trials(deadly=0.1), tmp_path, deadly=by_torch)
    answer(chosen, *tensors())
    assert only(chosen).kernel == TORCH
    assert only(chosen).refused == {"deadly": "ended the process that tried it"}


def test_a_filesystem_without_locks_keeps_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre's, unless it is mounted with them: homes of clusters."""

    def refuse_lock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse_lock)
    chosen = chooser(Trials(fast=0.5), tmp_path, fast=by_torch)
    answer(chosen, *tensors())
    assert only(chosen).kernel == "fast"
    assert only(chosen).refused == {}
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]


def test_another_cudnn_is_tried_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = attention.records_folder(tmp_path, CPU)
    assert attention.records_folder(tmp_path, CPU) == before
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92_600)
    assert attention.records_folder(tmp_path, CPU) != before


def test_a_kernel_that_another_process_tries_now_is_tried(tmp_path: Path) -> None:
    records = ChoiceRecords(tmp_path)
    shape = Shape.of(AttentionCall(*tensors()))
    with records.trying(shape, "fast"):
        assert ChoiceRecords(tmp_path).crashed(shape) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_refuses_a_later_call_is_given_up(tmp_path: Path) -> None:
    calls: list[int] = []

    def refuse_strides(call: AttentionCall) -> torch.Tensor:
        calls.append(1)
        if call.query.stride(-1) != 1:
            raise RuntimeError("the last dimension must be contiguous")
        return by_torch(call)

    chosen = chooser(Trials(fast=0.5), tmp_path, fast=refuse_strides)
    query, key, value = tensors()
    answer(chosen, query, key, value)
    odd = query.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(answer(chosen, odd, key, value), plain_torch(odd, key, value))
    assert only(chosen).kernel == TORCH
    assert "refused a later call" in only(chosen).refused["fast"]
    before = len(calls)
    answer(chosen, odd, key, value)
    assert len(calls) == before


WRONG_CASES: dict[str, Callable[[AttentionCall], bool]] = {
    "an odd last tile": lambda call: call.key.shape[2] % 32 == 1,
    "expanded keys": lambda call: call.key.stride(0) == 0,
    "a mask of pairs": lambda call: call.mask is not None and call.mask.shape[2] > 1,
}


@pytest.mark.parametrize("case", WRONG_CASES)
def test_a_kernel_that_is_wrong_for_a_later_call_is_given_up(case: str, tmp_path: Path) -> None:
    def sometimes(call: AttentionCall) -> torch.Tensor:
        return by_torch(call) * (3 if WRONG_CASES[case](call) else 1)

    chosen = chooser(Trials(fast=0.5), tmp_path, fast=sometimes)
    query, key, value = tensors()
    mask = (torch.arange(40) < 37)[None, None, None] if "mask" in case else None
    answer(chosen, query, key, value, attn_mask=mask)
    assert only(chosen).kernel == "fast"
    if case == "an odd last tile":
        key, value = key[:, :, :33].clone(), value[:, :, :33].clone()
    elif case == "expanded keys":
        key = key[:1].expand(2, -1, -1, -1)
    elif mask is not None:
        mask = mask.expand(1, 1, 40, 40).tril()
    broken = answer(chosen, torch.full_like(query, torch.nan), key, value, attn_mask=mask)
    assert broken.isnan().all()
    assert only(chosen).kernel == "fast"  # tensors of no numbers say nothing of it
    expected = plain_torch(query, key, value, mask)
    assert torch.equal(answer(chosen, query, key, value, attn_mask=mask), expected)
    assert only(chosen).kernel == TORCH
    assert set(only(chosen).wrong) == {"fast"}
    again = chooser(Trials(fast=0.5), tmp_path, fast=sometimes)
    assert torch.equal(answer(again, query, key, value, attn_mask=mask), expected)


def test_running_out_of_memory_is_the_callers_to_handle() -> None:
    def full(call: AttentionCall) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    chosen = chooser(Trials(), full=full)
    operands = tensors()
    assert torch.equal(answer(chosen, *operands), plain_torch(*operands))
    assert chosen.choices == {}  # nothing was learnt
    chosen.choices[Shape.of(AttentionCall(*operands))] = attention.Choice("full")
    with pytest.raises(torch.OutOfMemoryError):
        answer(chosen, *operands)


def test_tensors_of_no_numbers_decide_nothing() -> None:
    chosen = chooser(Trials(fast=0.5), fast=by_torch)
    query, key, value = tensors()
    broken = torch.full_like(query, float("nan"))
    assert answer(chosen, broken, key, value).isnan().all()
    answer(chosen, query, key, value)
    assert only(chosen).kernel == "fast"
    chosen = chooser(Trials(fast=0.5), fast=by_torch)
    for _ in range(attention.MOST_TRIALS):
        answer(chosen, broken, key, value)
    assert only(chosen).kernel == TORCH


@pytest.mark.parametrize("case", ["dropout", "by name", "gradients", "small", "integers"])
def test_what_is_torchs_stays_torchs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = chooser(Trials(fast=0.5), fast=by_torch)
    query, key, value = tensors()
    if case == "gradients":
        chosen(query, key, value)
    elif case == "by name":
        with left_to_torch(), left_to_torch():
            answer(chosen, query, key, value)
    elif case == "small":
        monkeypatch.setattr(attention, "TRIED_FLOP", 1e9)
        answer(chosen, query, key, value)
    elif case == "dropout":
        answer(chosen, query, key, value, dropout_p=0.5)
    else:
        answer(chosen, query.double(), key.double(), value.double())
    assert chosen.choices == {}


@pytest.mark.parametrize("case", ["causal", "rows of keys", "rows of values"])
def test_shapes_that_kernels_take_in_other_ways_are_torchs(case: str) -> None:
    """Also once a kernel is chosen for calls of as many tokens."""
    trials = Trials(fast=0.5)
    chosen = chooser(trials, fast=lambda call: plain_torch(call.query, call.key[:, :, :40], call.value[:, :, :40]))
    query, key, value = tensors()
    answer(chosen, query, key, value)
    assert only(chosen).kernel == "fast"
    options: dict[str, Any] = {}
    if case == "causal":
        (query, key, value), options = tensors(40, 56), {"is_causal": True}
    elif case == "rows of keys":
        key, value = key[:1], value[:1]
    else:
        value = value[:1]
    trials.timed.clear()
    assert torch.equal(answer(chosen, query, key, value, **options), plain_torch(query, key, value, **options))
    assert len(chosen.choices) == 1
    assert trials.timed == []


def test_how_many_images_share_a_call_changes_nothing() -> None:
    query, key, value = tensors()
    alone = AttentionCall(query[:1], key[:1], value[:1])
    assert Shape.of(alone) == Shape.of(AttentionCall(query, key, value))
    assert Shape.of(alone) != Shape.of(AttentionCall(*tensors(80)))


MASKS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "of keys": lambda tokens, keys: (torch.arange(keys) < keys - 3)[None, None, None],
    "of heads": lambda tokens, keys: torch.rand(1, 4, tokens, keys, generator=torch.Generator().manual_seed(0)) > 0.3,
    "of all keys of a query": lambda tokens, keys: (torch.arange(tokens) >= 3)[None, None, :, None].expand(
        1, 1, tokens, keys
    ),
    "added": lambda tokens, keys: torch.randn(2, 1, tokens, keys, generator=torch.Generator().manual_seed(0)),
}


def calls() -> dict[str, AttentionCall]:
    of_keys = {f"a mask {name}": AttentionCall(*tensors(40, 56), make(40, 56)) for name, make in MASKS.items()}
    return {
        "plain": AttentionCall(*tensors(300, 300)),
        "other keys": AttentionCall(*tensors(40, 7)),
        "causal": AttentionCall(*tensors(), causal=True),
        "a scale": AttentionCall(*tensors(), scale=0.5),
        "few heads of keys": AttentionCall(*tensors(key_heads=2), grouped=True),
        **of_keys,
    }


@pytest.mark.parametrize("name", calls())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_torch_is_right_on_a_cpu_and_others_are_wrong(name: str, dtype: torch.dtype) -> None:
    call = calls()[name]
    mask = call.mask.to(dtype) if call.mask is not None and call.mask.dtype != torch.bool else call.mask
    operands = (each.to(dtype) for each in (call.query, call.key, call.value))
    call = AttentionCall(*operands, mask, call.causal, call.scale, call.grouped)
    right = by_torch(call)
    assert worst_error(call, right) < TOLERANCE[dtype]
    one_head = right.clone()
    one_head[1, 2] = right[1, 1]  # one head of one image
    assert worst_error(call, one_head) > 0.1
    last = right.clone()
    last[:, :, -1] = 0  # as of a kernel that leaves out the last tile
    assert worst_error(call, last) > TOLERANCE[dtype]
    last[0, 0, 0, 0] = torch.nan
    assert not worst_error(call, last) <= TOLERANCE[dtype]


def test_packages_that_do_not_import_are_left_out() -> None:
    def import_module(name: str) -> Any:
        if name == "sageattention":
            raise OSError("undefined symbol: _ZN2at")
        if name == "flash_attn_interface":
            return type("module", (), {"flash_attn_func": staticmethod(partial(_tokens_first))})
        raise ImportError(name)

    kernels = installed_kernels(import_module)
    assert set(kernels) == {"flash", "cudnn", "efficient", "math", "flash-attn-3"}
    call = AttentionCall(*tensors(), causal=True, scale=0.5)
    assert torch.equal(kernels["flash-attn-3"](call), by_torch(call))
    with pytest.raises(ValueError, match="no mask"):
        kernels["flash-attn-3"](calls()["a mask of keys"])
    assert worst_error(call, kernels["math"](call)) < 1e-5


def _tokens_first(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, softmax_scale: float | None, causal: bool
) -> tuple[torch.Tensor, None]:
    operands = (each.transpose(1, 2) for each in (query, key, value))
    return plain_torch(*operands, is_causal=causal, scale=softmax_scale).transpose(1, 2), None
