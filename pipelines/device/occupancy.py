"""Who has a GPU's memory, by NVML: the programs that see to it that a checkpoint does not fit."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pynvml
import torch

GIB: Final = 2**30
LEAST_BYTES: Final = 2**27  # what a program has that is worth a name in a message
MOST_NAMED: Final = 4
INTERPRETERS: Final = ("python", "node", "java", "ruby", "perl", "bash", "sh")  # whose first argument says more


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has memory of a GPU; `bytes` is None where the driver does not say how much, as on Windows."""

    pid: int
    name: str
    bytes: int | None

    def __str__(self) -> str:
        size = "an unknown part" if self.bytes is None else f"{self.bytes / GIB:.1f} GiB"
        return f"{self.name} (PID {self.pid}) {size}"


def explain_taken(device: torch.device, total: int, free: int, reserved: int) -> str:
    """Say what other programs have of a GPU, by name as far as they can be seen from here. Of its `total` bytes `free`
    are free, and this process's tensors have `reserved`."""
    found = processes(device)
    own = max([reserved, *(each.bytes or 0 for each in found if each.pid == os.getpid())])
    others = [each for each in found if each.pid != os.getpid() and (each.bytes is None or each.bytes >= LEAST_BYTES)]
    others = sorted(others, key=lambda each: each.bytes or 0, reverse=True)[:MOST_NAMED]
    taken = max(0, total - free - own)
    unseen = taken - sum(each.bytes or 0 for each in others)
    listed = [str(each) for each in others]
    if unseen >= LEAST_BYTES or not others:
        listed.append(f"{max(0, unseen) / GIB:.1f} GiB by processes that can't be seen from here")
    return f"other programs have {taken / GIB:.1f} of the GPU's {total / GIB:.1f} GiB: {', '.join(listed)}"


def processes(device: torch.device) -> list[Holder]:
    """List the processes that have memory of a GPU, as far as they can be seen from here; none without NVML."""
    try:
        pynvml.nvmlInit()
        try:
            found = {each.pid: each for each in _processes(_handle(device))}
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []
    visible = (each for pid, each in found.items() if Path("/proc", str(pid)).exists())
    return [Holder(each.pid, _name(each.pid), _used(each)) for each in visible]


@cache
def numa_node(device: torch.device) -> int | None:
    """Return the node of the host's memory that a GPU's memory is (Grace Hopper); None for all others."""
    try:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetNumaNodeId(_handle(device)))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def _handle(device: torch.device) -> Any:
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:  # a part of a GPU
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _processes(handle: Any) -> Iterator[Any]:
    for list_processes in (
        pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):  # fmt: skip
        try:
            yield from list_processes(handle)
        except pynvml.NVMLError:  # not of this device
            continue


def _used(process: Any) -> int | None:
    return None if process.usedGpuMemory is None else int(process.usedGpuMemory)


def _name(pid: int) -> str:
    """Return a program's name: of an interpreter also what it runs, but no other argument, which may be a secret."""
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended
        words = [""]
    program = words[0].rpartition("/")[2]
    if not program:
        return "a process"
    arguments = [word for word in words[1:] if word and (word == "-m" or not word.startswith("-"))]
    if program.rstrip("0123456789.") in INTERPRETERS and arguments:
        runs = " ".join(arguments[:2]) if arguments[0] == "-m" else arguments[0].rpartition("/")[2]
        return f"{program} {runs}"[:80]
    return program
