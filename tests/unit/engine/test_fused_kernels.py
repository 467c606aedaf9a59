"""What the kernels of fused operations are for the chips that they are for, by the way that a worker compiles them."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="there is no Triton for this platform")

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from pipelines.device.fusion import kernels
from pipelines.device.fusion.planning import Fused, plan
from pipelines.device.fusion.recording import Record, record

HOST = torch.device("cpu")
CHIPS = {"A100": 80, "Hopper": 90, "RTX 50": 120}
ONE, MINUS_ZERO = "1065369472", "-2147450880"  # as two bfloat16 of a register


def gated(tokens: int, text: int, rows: int = 1) -> Record:
    """The residual of two streams, and rotary embeddings of one of them, of so many tokens."""
    stream, added = torch.ones(rows, tokens, 128).bfloat16(), torch.ones(rows, text, 128).bfloat16()
    modulation = torch.ones(rows, 3 * 128).bfloat16()
    angles = torch.ones(tokens + text, 1, 32)

    def run() -> tuple[torch.Tensor, ...]:
        gate, scale, shift = modulation.chunk(3, dim=1)
        joined = torch.cat([added, stream * (1 + scale[:, None]) + shift[:, None]], dim=1) * gate[:, None]
        heads = joined.reshape(*joined.shape[:-1], 4, 32)
        even, odd = heads.reshape(*heads.shape[:-1], -1, 2).unbind(-1)
        turned = torch.stack([-odd, even], dim=-1).flatten(3)
        return ((heads.float() * angles + turned.float() * angles).bfloat16(),)

    with torch.inference_mode():
        _, made = record(run)
    assert isinstance(made, Record)
    return made


def fused(made: Record) -> list[Fused]:
    return [step for step in plan(made, HOST, ()) if isinstance(step, Fused)]


def test_the_text_of_a_kernel_is_the_same_for_every_number_of_tokens_and_rows() -> None:
    texts = {step.source.text for sizes in [(64, 77), (63, 77), (4096, 512)] for step in fused(gated(*sizes))}
    assert len(texts) == len(fused(gated(64, 77)))
    several = {step.source.text for rows in (2, 3, 8) for step in fused(gated(64, 77, rows))}
    assert len(several) == len(fused(gated(64, 77, 2)))


def contracted(ptx: str) -> list[str]:
    """List what is rounded once for two operations. Ampere has no sums and products in bfloat16 alone: there they are
    products with one, and sums with minus zero."""
    constants = dict(re.findall(r"mov\.b32\s+(%r\d+), (-?\d+);", ptx))
    found = re.findall(r"fma\.\S+\s+%\S+, (%\S+), (%\S+), (%\S+);", ptx)
    return [
        f"{one} * {other} + {third}"
        for one, other, third in found
        if ONE not in (constants.get(one), constants.get(other)) and constants.get(third) != MINUS_ZERO
    ]


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_every_operation_is_rounded_alone(chip: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No product that is added is contracted, no number is flushed to zero, and rows are read as vectors."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    target = GPUTarget("cuda", chip, 32)
    here = SimpleNamespace(
        get_current_target=lambda: target, get_current_device=lambda: chip, get_current_stream=lambda _: 0
    )
    monkeypatch.setattr(driver, "_active", here)
    step = fused(gated(64, 77))[-1]
    made = kernels.build(step.source, step.result.dtype, HOST)
    text = made.asm["ptx"]
    assert made.asm["cubin"]
    assert f".target sm_{chip}" in text
    assert not contracted(text)
    assert ".ftz" not in text
    assert "mul.rn.f32" in text
    assert {*re.findall(r"\bcvt\.\S*bf16\S*\.f32", text)} <= {"cvt.rn.bf16x2.f32", "cvt.rn.bf16.f32"}
    assert "ld.global.v4" in text
    assert "st.global.v4" in text
