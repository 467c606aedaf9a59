"""The device under test, and timing on it."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pipelines.checkpoints.memory.shares import host_memory_bytes
from pipelines.images.loading.fp8 import supports_scaled_matmul


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU with real sizes, or with `tiny` any device with small ones."""

    device: torch.device
    tiny: bool

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.is_gpu else torch.float32

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def memory_gib(self) -> float:
        """All of the device's, whatever is in there."""
        return (torch.cuda.mem_get_info(self.device)[1] if self.is_gpu else host_memory_bytes()) / 2**30

    @property
    def has_fp8(self) -> bool:
        """Kernels that multiply float8 matrices; a CPU has slow ones."""
        return supports_scaled_matmul(self.device)

    def sync(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def free(self) -> None:
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()

    def timed(self, work: Callable[[], object], rounds: int = 3) -> float:
        """The median of some rounds in seconds, after one that does not count."""
        work()
        taken = []
        for _ in range(1 if self.tiny else rounds):
            self.sync()
            began = time.perf_counter()
            work()
            self.sync()
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    def reset_peak(self) -> None:
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    @property
    def peak_gib(self) -> float:
        """Since `reset_peak`; 0 on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) / 2**30 if self.is_gpu else 0.0

    def make(self, build: Callable[[], Any]) -> Any:
        """A module with seeded random weights, made on the device in its dtype."""
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with torch.device(self.device):
                return build().eval().requires_grad_(False)
        finally:
            torch.set_default_dtype(before)
