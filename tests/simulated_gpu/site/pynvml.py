"""NVML of the simulated GPUs, for processes without torch: what server/backends/gpus.py asks of it."""

import os
from pathlib import Path
from types import SimpleNamespace


class NVMLError(Exception):
    """As in NVIDIA's bindings."""


class NVMLError_NotFound(NVMLError):
    """As in NVIDIA's bindings."""


NVML_DEVICE_MIG_ENABLE = 1


def nvmlInit() -> None:
    """Do nothing: there is no driver."""


def nvmlShutdown() -> None:
    """Do nothing: there is no driver."""


def nvmlDeviceGetCount() -> int:
    """Return how many GPUs there are."""
    return int(os.environ["SIMULATED_GPUS"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    """Return what stands for a GPU."""
    return index


def nvmlDeviceGetName(_: int) -> str:
    """Return the name that torch says, too."""
    return "Simulated H100"


def nvmlDeviceGetUUID(index: int) -> str:
    """Return a name that CUDA_VISIBLE_DEVICES takes."""
    return f"GPU-0000000{index}-0000-0000-0000-000000000000"


def nvmlDeviceGetMemoryInfo(index: int) -> SimpleNamespace:
    """Return the bytes of a GPU, and those of them that the processes which live now have written down."""
    total = int(float(os.environ["SIMULATED_GPU_GIB"]) * 2**30)
    files = Path(os.environ["SIMULATED_GPU_USED"]).glob(f"{nvmlDeviceGetUUID(index)}.*")
    used = sum(int(file.read_text() or 0) for file in files if Path("/proc", file.suffix[1:]).exists())
    return SimpleNamespace(total=total, free=total - used, used=used)


def nvmlDeviceGetMigMode(_: int) -> tuple[int, int]:
    """Say that no GPU is divided."""
    return 0, 0
