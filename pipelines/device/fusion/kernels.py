"""Compiling and launching kernels that are written while a worker runs, by Triton, which keeps what it has compiled in
the folder of kernels.

No two operations are contracted into one, and so each is rounded as it is alone.
"""

import contextlib
import functools
import hashlib
import linecache
from collections.abc import Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl

from pipelines.device.fusion.source import Source

TILE: Final = 1024  # elements of a program
WIDEST: Final = 1024  # elements of a row that it computes at once
WARPS: Final = 4
OPTIONS: Final = {"num_warps": WARPS, "enable_fp_fusion": False}


@functools.cache
def kernel(text: str) -> Any:
    """Return the kernel of a text. Numbers are not compiled into it."""
    name = f"<fused {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name  # where Triton reads it
    namespace: dict[str, Any] = {"tl": tl, "__name__": __name__}
    exec(compile(text, name, "exec"), namespace)  # noqa: S102 - written by source.py
    made = namespace["fused"]
    names = made.__code__.co_varnames[: made.__code__.co_argcount]
    return triton.jit(made, do_not_specialize=[each for each in names if each[0] in "nr"])


def shape(source: Source) -> dict[str, int]:
    """Return how much of the result a program computes."""
    block = min(WIDEST, triton.next_power_of_2(source.columns))
    rows = max(1, min(TILE // block, triton.next_power_of_2(source.rows)))
    return {"ROWS": rows, "BLOCK": block}


def build(source: Source, result: torch.dtype, device: torch.device) -> Any:
    """Compile a kernel, unless it is in the folder of kernels, and return it. Raises what compilers do."""
    dtypes = [each.dtype for each in source.tensors]
    with _current(device):
        return kernel(source.text).warmup(
            *dtypes, result, *source.numbers, source.rows, grid=(1,), **shape(source), **OPTIONS
        )


def launch(source: Source, tensors: Sequence[torch.Tensor], result: torch.Tensor) -> None:
    """Compute a kernel. `tensors` begin where their storages do."""
    tile = shape(source)
    grid = triton.cdiv(source.rows, tile["ROWS"]), triton.cdiv(source.columns, tile["BLOCK"])
    with _current(result.device):
        kernel(source.text)[grid](*tensors, result, *source.numbers, source.rows, **tile, **OPTIONS)


def _current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
