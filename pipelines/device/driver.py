"""NVIDIA's driver and cards, as NVML and the kernel list them: for messages, and to tell a machine without a GPU from
one whose GPU does not compute. Imports no torch."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pynvml

HIDDEN: Final = frozenset({"", "-1", "none", "void", "NoDevFiles"})  # of CUDA_VISIBLE_DEVICES: no GPU, on purpose
NVIDIA: Final = "0x10de"  # its number among makers of PCI devices
GPU_CLASSES: Final = ("0x0300", "0x0302")  # of PCI devices: with a display, and without
WSL_LIBRARY: Final = "usr/lib/wsl/lib/libcuda.so.1"  # which Windows lends where it has NVIDIA's driver


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU that NVML lists. `mode` is its compute mode, None where it has none."""

    name: str
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """What NVML tells: the driver's version, the newest CUDA that it runs, and its cards. `failure` is NVML's own error
    in place of that; `installed`: its library is here."""

    version: str = ""
    cuda: tuple[int, int] = (0, 0)
    cards: tuple[Card, ...] = ()
    failure: str | None = None
    installed: bool = True


def read_driver() -> Driver:
    """Ask NVML. One that can't be asked is a driver with a `failure`."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Driver(failure=str(error).rstrip("."), installed=not isinstance(error, pynvml.NVMLError_LibraryNotFound))
    try:
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        version = str(pynvml.nvmlSystemGetDriverVersion())
        return Driver(version, (cuda // 1000, cuda % 1000 // 10), tuple(_cards()))
    except pynvml.NVMLError as error:
        return Driver(failure=str(error).rstrip("."))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _cards() -> Iterator[Card]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = str(pynvml.nvmlDeviceGetName(handle))
        except pynvml.NVMLError as error:  # such as one that is lost; it is a card all the same
            yield Card(f"GPU {index}: {error}")
            continue
        mode = None
        with suppress(pynvml.NVMLError):
            mode = int(pynvml.nvmlDeviceGetComputeMode(handle))
        yield Card(name, mode)


def kernel_cards(root: Path = Path("/")) -> list[str]:
    """List NVIDIA's GPUs as the kernel knows them, also where a container hides them from programs: by the driver's
    module, or by their places on the bus; under WSL by the driver of Windows, as the bus has none of NVIDIA there."""
    found = []
    for file in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        lines = dict(line.split(":", 1) for line in _read(file).splitlines() if ":" in line)
        found.append(lines.get("Model", "an NVIDIA GPU").strip())
    if found:
        return found
    places = sorted(root.glob("sys/bus/pci/devices/*"))
    found = [f"an NVIDIA GPU (PCI {place.name})" for place in places if _is_gpu(place)]
    return found or (["an NVIDIA GPU of Windows"] if (root / WSL_LIBRARY).exists() else [])


def _is_gpu(place: Path) -> bool:
    return _read(place / "vendor").strip() == NVIDIA and _read(place / "class").strip().startswith(GPU_CLASSES)


def are_hidden() -> bool:
    """Return whether the operator shows no GPU to this process, on purpose."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in HIDDEN


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
