"""Fused kernels on a CPU: by Triton's interpreter, which computes numbers as a GPU does."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pipelines.device.fusion.fuser import Fuser
from tests.simulated_gpu.triton_kernels import INTERPRET, rounded_to_even
from tests.support.recorded_steps import Recorder


class InterpretingFuser(Fuser):
    """Fuses where Triton's interpreter computes the kernels."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.refused = None


def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpret the kernels that are written from now on."""
    from triton.runtime import interpreter

    from pipelines.device.fusion import kernels

    for name, value in INTERPRET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(interpreter, "_convert_float", rounded_to_even(interpreter._convert_float))
    launch = kernels.launch

    def noted(source: Any, tensors: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        launch(source, tensors, result)
        if Recorder.at_work is not None:
            Recorder.at_work.note(lambda *given: launch(source, given[:-1], given[-1]), *tensors, result)

    monkeypatch.setattr(kernels, "launch", noted)
    monkeypatch.setattr(kernels, "TILE", 2**16)  # each program takes a millisecond
    monkeypatch.setattr(kernels, "WIDEST", 2**12)
    kernels.kernel.cache_clear()
