"""The GPUs of this machine, by NVML: the server imports no torch. None where there is no NVIDIA driver."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or an instance of one that is divided (MIG). CUDA_VISIBLE_DEVICES takes its `uuid`."""

    uuid: str
    name: str
    total_bytes: int
    free_bytes: int  # when it was looked at


def list_gpus(visible: str | None) -> list[Gpu]:
    """List the GPUs in the order of nvidia-smi. `visible` is CUDA_VISIBLE_DEVICES of the server's environment, whose
    GPUs and order are kept; None for all. A driver that does not answer counts as none: the worker's own error is
    better."""
    try:
        pynvml.nvmlInit()
        try:
            return select_visible([list(_parts(index)) for index in range(pynvml.nvmlDeviceGetCount())], visible)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []


def select_visible(gpus: Sequence[Sequence[Gpu]], visible: str | None) -> list[Gpu]:
    """Select the visible ones of the parts of each GPU: one for most, several of a divided one.

    `visible` has the beginnings of UUIDs, or indices in the order of `gpus`: nvidia-smi's, by PCI bus. CUDA by itself
    would count the fastest first. As in CUDA, the first that is not there ends the list.
    """
    every = [part for parts in gpus for part in parts]
    if visible is None:
        return every
    chosen: list[Gpu] = []
    for name in (name.strip() for name in visible.split(",")):
        if name.isdigit():
            found = list(gpus[int(name)]) if int(name) < len(gpus) else []
        else:
            found = [gpu for gpu in every if name and gpu.uuid.startswith(name)][:1]
        if not found:
            break
        chosen += [gpu for gpu in found if gpu not in chosen]
    return chosen


def _parts(index: int) -> Iterator[Gpu]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = pynvml.nvmlDeviceGetName(handle)
    instances = list(_instances(handle))
    for each in instances or [handle]:
        memory = pynvml.nvmlDeviceGetMemoryInfo(each)
        yield Gpu(pynvml.nvmlDeviceGetUUID(each), name, int(memory.total), int(memory.free))


def _instances(handle: Any) -> Iterator[Any]:
    """Yield the MIG instances of a divided GPU; none of any other."""
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # it can't be divided
        return
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        return
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError_NotFound:  # places of instances need not be taken in order
            continue
