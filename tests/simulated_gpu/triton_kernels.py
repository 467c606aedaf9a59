"""Triton's kernels on the simulated GPU: by Triton's interpreter, on the memory of the device, as one launch each.

The interpreter computes as NumPy does. Where a GPU computes otherwise, and that matters here, it is taught to: maxima
and minima drop NaN unless they are told to keep it, what becomes bfloat16 is rounded to even, and what becomes float8
too, cut to the format's range, and NaN if it was.
"""

import functools
import importlib.util
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

INTERPRET = {"TRITON_INTERPRET": "1"}  # has to be in the environment before anything imports Triton


def interpret(extension: Any) -> None:
    """Let kernels of this process be interpreted, if Triton is here."""
    if importlib.util.find_spec("triton") is None:
        return
    os.environ.update(INTERPRET)
    from triton.runtime import interpreter

    calls = interpreter.GridExecutor.__call__

    def launch(self: Any, *arguments: Any, **options: Any) -> None:
        places = [place for place, each in enumerate(arguments) if isinstance(each, torch.Tensor)]

        def compute(on_host: list[torch.Tensor]) -> None:
            values = list(arguments)
            for place, tensor in zip(places, on_host, strict=True):
                values[place] = tensor
            with np.errstate(all="ignore"):
                calls(self, *values, **options)

        extension.launch_kernel(f"triton::{self.fn.__name__}", [arguments[place] for place in places], compute)

    interpreter._convert_float = rounded_to_even(interpreter._convert_float)
    interpreter._patch_lang = functools.cache(_Patched(interpreter._patch_lang))  # it did so at each call of a function
    builder = interpreter.InterpreterBuilder
    builder.create_maxnumf = lambda self, one, other: self.binary_op(one, other, np.fmax)
    builder.create_minnumf = lambda self, one, other: self.binary_op(one, other, np.fmin)
    builder.create_clampf = _clamp
    interpreter.GridExecutor.__call__ = launch


def rounded_to_even(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Return how the interpreter makes other floats of floats, but bfloat16 and float8 as a GPU does."""

    def rounded(values: Any, before: Any, after: Any, rounding: Any) -> Any:
        if str(after) not in {"fp8e4nv", "bf16"} or str(before) != "fp32":
            return convert(values, before, after, rounding)
        wide = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        if str(after) == "bf16":
            return wide.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        most = torch.finfo(torch.float8_e4m3fn).max
        return wide.clamp(-most, most).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    return rounded


class _Patched:
    """What a kernel reads of Triton's language is the interpreter's from its first launch on."""

    def __init__(self, patch: Callable[[Any], Any]) -> None:
        self._patch = patch

    def __call__(self, function: Any) -> Any:
        self._patch(function)
        return SimpleNamespace(restore=lambda: None)


def _clamp(self: Any, values: Any, least: Any, most: Any, keeps_nan: Any) -> Any:
    from triton.language import PropagateNan

    if keeps_nan == PropagateNan.ALL:
        return self.ternary_op(values, least, most, np.clip)
    return self.ternary_op(values, least, most, lambda each, low, high: np.fmin(np.fmax(each, low), high))
