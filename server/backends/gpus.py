"""The GPUs of this machine, by NVML: the server imports no torch. None where there is no NVIDIA driver."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, Final

import pynvml
import structlog

from pipelines.checkpoints.memory.shares import host_memory_bytes

log = structlog.stdlib.get_logger("darkroom.engine")

ANSWER_LIMIT_S: Final = 60.0  # eight GPUs without the persistence daemon take many seconds


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or an instance of one that is divided (MIG). CUDA_VISIBLE_DEVICES takes its `uuid`. One with a `problem`
    can't be used, and keeps its place in the list: the others are counted as ever."""

    uuid: str
    name: str
    total_bytes: int
    free_bytes: int  # when it was looked at
    problem: str | None = None

    @property
    def is_instance(self) -> bool:
        """Return whether this is an instance of a divided GPU, of which CUDA shows a process one alone."""
        return self.uuid.startswith("MIG-")


def list_gpus(visible: str | None) -> list[Gpu]:
    """List the GPUs in the order of nvidia-smi, each with its own problem. `visible` is CUDA_VISIBLE_DEVICES of the
    server's environment, whose GPUs and order are kept; None for all. A driver that does not answer counts as none: the
    worker's own error is better. One that hangs is left behind in a thread, with the GPUs that it has not told."""
    found: list[Sequence[Gpu]] = []
    asking = Thread(target=lambda: found.extend(_every_gpu()), name="nvml", daemon=True)
    asking.start()
    asking.join(ANSWER_LIMIT_S)
    if asking.is_alive():
        remedy = "the driver or a GPU hangs: look for Xid in dmesg, and restart the machine"
        log.error("NVML does not answer", waited_s=ANSWER_LIMIT_S, known=len(found), remedy=remedy)
    return select_visible(list(found), visible)


def _every_gpu() -> Iterator[list[Gpu]]:
    """Yield the parts of each GPU."""
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return
    try:
        yield from map(_parts, range(count))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def select_visible(gpus: Sequence[Sequence[Gpu]], visible: str | None) -> list[Gpu]:
    """Select the visible ones of the parts of each GPU: one for most, several of a divided one.

    `visible` has the beginnings of UUIDs, or indices in the order of `gpus`: nvidia-smi's, by PCI bus. CUDA by itself
    would count the fastest first. As in CUDA, the first that is not there ends the list; but a UUID may be that of a
    GPU which does not tell its own.
    """
    every = [part for parts in gpus for part in parts]
    if visible is None:
        return every
    chosen: list[Gpu] = []
    for name in (name.strip() for name in visible.split(",")):
        if name.isdecimal() and len(name) < 10:
            found = list(gpus[int(name)]) if int(name) < len(gpus) else []
        else:
            found = list(filter(None, [find_uuid(name, every)]))
        if not found:
            break
        chosen += [gpu for gpu in found if gpu not in chosen]
    return chosen


def find_uuid(name: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU whose UUID is `name`, or begins with it. While one does not tell its UUID, a name that no other
    has is taken for its own. None if there is no such GPU."""
    if not name.startswith(("GPU-", "MIG-")):
        return None
    known = next((gpu for gpu in gpus if gpu.uuid.startswith(name)), None)
    hidden = next((gpu for gpu in gpus if not gpu.uuid), None)
    return known or hidden


def _parts(index: int) -> list[Gpu]:
    """Return a GPU, or its instances. One that can't be read hides no other."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        if not _is_divided(handle):
            return [_read(handle, index, name)]
        if instances := list(_instances(handle, index, name)):
            return instances
        problem = "it is divided (MIG), and has no instance"
    except pynvml.NVMLError as error:
        problem = str(error)
    return [Gpu("", "", 0, 0, _problem(index, problem))]


def _read(handle: Any, index: int, name: str) -> Gpu:
    """Read a GPU or an instance. Where NVML has no figure, as on chips whose GPU has no memory of its own (GB10, Thor),
    the memory is the machine's."""
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission):
        return Gpu(uuid, name, host_memory_bytes(), host_memory_bytes())
    except pynvml.NVMLError as error:
        return Gpu(uuid, name, 0, 0, _problem(index, str(error)))
    return Gpu(uuid, name, int(memory.total), int(memory.free))


def _problem(index: int, reason: str) -> str:
    return f"GPU {index} can't be used: {reason}"


def _is_divided(handle: Any) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # it can't be divided
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _instances(handle: Any, index: int, name: str) -> Iterator[Gpu]:
    """Yield the instances of a divided GPU. Their places need not be taken in order, and one that can't be read is
    left out."""
    for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(pynvml.NVMLError):
            yield _read(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place), index, name)


def compute_capability(uuid: str) -> tuple[int, int]:
    """Return the compute capability of a GPU, which says how it can compute; the least where the driver does not."""
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            if uuid.startswith("MIG"):
                handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0, 0
    return int(major), int(minor)
