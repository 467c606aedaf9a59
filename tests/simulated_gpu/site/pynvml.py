"""NVML of the simulated GPUs: what server/backends/gpus.py and pipelines/device/driver.py ask of it."""

import os
from pathlib import Path
from types import SimpleNamespace


class NVMLError(Exception):
    """As in NVIDIA's bindings."""


class NVMLError_NotSupported(NVMLError):
    """As in NVIDIA's bindings."""


class NVMLError_FunctionNotFound(NVMLError):
    """As in NVIDIA's bindings."""


class NVMLError_NoPermission(NVMLError):
    """As in NVIDIA's bindings."""


class NVMLError_LibraryNotFound(NVMLError):
    """As in NVIDIA's bindings."""


NVML_DEVICE_MIG_ENABLE = 1
NVML_COMPUTEMODE_EXCLUSIVE_THREAD, NVML_COMPUTEMODE_PROHIBITED, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 1, 2, 3


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
    total = int(float(os.environ["SIMULATED_GPU_GIB"].split(",")[index]) * 2**30)
    files = Path(os.environ["SIMULATED_GPU_USED"]).glob(f"{nvmlDeviceGetUUID(index)}.*")
    used = sum(int(file.read_text() or 0) for file in files if Path("/proc", file.suffix[1:]).exists())
    return SimpleNamespace(total=total, free=total - used, used=used)


def nvmlDeviceGetMigMode(_: int) -> tuple[int, int]:
    """Say that no GPU is divided."""
    return 0, 0


def nvmlDeviceGetComputeMode(_: int) -> int:
    """Return the mode that a test sets: by default any process may use a GPU."""
    return int(os.environ.get("SIMULATED_GPU_MODE", "0"))


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    """Return the CUDA of the driver, 13.0 unless a test says otherwise."""
    return int(os.environ.get("SIMULATED_DRIVER_CUDA", "13000"))


def nvmlSystemGetDriverVersion() -> str:
    """Return the driver's own version."""
    return os.environ.get("SIMULATED_DRIVER", "580.82.07")


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    """Return what stands for a GPU."""
    for index in range(nvmlDeviceGetCount()):
        if nvmlDeviceGetUUID(index) == uuid:
            return index
    raise NVMLError(uuid)


def nvmlDeviceGetComputeRunningProcesses(index: int) -> list[SimpleNamespace]:
    """Return the processes that live now and have written down what they have of a GPU."""
    files = Path(os.environ["SIMULATED_GPU_USED"]).glob(f"{nvmlDeviceGetUUID(index)}.*")
    return [SimpleNamespace(pid=int(file.suffix[1:]), usedGpuMemory=int(file.read_text() or 0)) for file in files]


def nvmlDeviceGetGraphicsRunningProcesses(_: int) -> list[SimpleNamespace]:
    """Return none."""
    return []


def nvmlDeviceGetNumaNodeId(_: int) -> int:
    """Say that its memory is no node of the host's."""
    raise NVMLError("not supported")


def nvmlDeviceGetCudaComputeCapability(_: int) -> tuple[int, int]:
    """Return that of an H100, as torch says."""
    return 9, 0
