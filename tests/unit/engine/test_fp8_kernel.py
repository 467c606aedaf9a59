"""The kernel that quantizes rows on a GPU, compiled for the chips that it is for. tests/gpu/test_fp8.py runs it."""

import re
from pathlib import Path

import pytest

from pipelines.checkpoints.memory.runtime import FP8_CAPABILITY

pytest.importorskip("triton", reason="there is no Triton for this platform")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pipelines.images.loading import fp8_kernel

pytestmark = pytest.mark.slow
CHIPS = {"Ada": 89, "Hopper": 90, "B200": 100, "RTX 50": 120}
FLOAT_LIMITS = re.compile(r"\b(?:max|min)\.\S*f32\b")


def assembler(chip: int) -> str:
    """Return what the kernel is for a chip, of which Triton's own assembler has made a binary, too."""
    pointers = {"inputs": "*bf16", "values": "*fp8e4nv", "scales": "*fp32"}
    constants = {"LARGEST": 448.0, "BLOCK": fp8_kernel.BLOCK}
    source = ASTSource(
        fn=fp8_kernel._quantize_row,
        signature={**pointers, "features": "i32", **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
    )
    made = triton.compile(source, target=GPUTarget("cuda", chip, 32), options={"num_warps": fp8_kernel.WARPS})
    assert made.asm["cubin"]
    text: str = made.asm["ptx"]
    return text


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile anew, and leave nothing in the user's folder."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_no_maximum_and_no_minimum_drops_nan(chip: int) -> None:
    text = assembler(chip)
    assert f".target sm_{chip}" in text
    limits = FLOAT_LIMITS.findall(text)
    assert len(limits) > 2
    assert {limit for limit in limits if ".NaN" not in limit} == set()
    assert set(re.findall(r"\bcvt\.\S*e4m3x2\S*", text)) <= {
        "cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e4m3x2.f16x2",
    }  # fmt: skip
    assert "e4m3x2" in text


def test_older_chips_have_no_such_numbers_and_are_refused_before() -> None:
    assert min(CHIPS.values()) == FP8_CAPABILITY[0] * 10 + FP8_CAPABILITY[1]
    with pytest.raises(triton.CompilationError, match="fp8e4nv not supported in this architecture"):
        assembler(80)
