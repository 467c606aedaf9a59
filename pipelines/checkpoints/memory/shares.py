"""How the memory of a machine and of its devices is divided between workers. Pure: the server reckons with it too."""

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from pipelines.checkpoints.memory.chat_files import loaded_bytes
from pipelines.protocol.images import Quantize

DEVICE_SHARE: Final = 0.8  # of its memory for weights; the rest is for activations
DRAWING_BYTES: Final = 7 * 2**29  # which an image of a megapixel may need beside the weights (benchmarks.memory --real)
LEAST_SHARE: Final = 0.5  # for weights on small devices, whose checkpoints draw smaller images
CHAT_CACHE_SHARE: Final = 0.15  # of the device's memory for the KV cache of chats, unless a setting says otherwise
CONTEXT_BYTES: Final = 2**30  # of a process on a GPU: CUDA's context and the libraries; 0.7 to 1.4 GiB on an H100
HOST_RESERVE_BYTES: Final = 4 * 2**30  # of the host for all but weights: the server, the workers' libraries, images
LEAST_HOST_SHARE: Final = 0.5  # of a small host for weights
FREE_SHARE: Final = 0.9  # of what the host has left now that new weights may take
LIMIT_FILES: Final = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}  # by type of file system
USAGE_FILES: Final = {"cgroup2": "memory.current", "cgroup": "memory.usage_in_bytes"}
# By type of file system, the lines of memory.stat that the kernel gives back when memory is short: files' pages
RECLAIMED: Final = {
    "cgroup2": ("active_file", "inactive_file", "slab_reclaimable"),
    "cgroup": ("total_active_file", "total_inactive_file"),
}


@dataclass(frozen=True, slots=True)
class Room:
    """The bytes that a worker has for the weights of a checkpoint: of its device, and of the host for those that wait
    there. `is_unified`: both are one memory, and the device's figure counts."""

    device_bytes: int
    host_bytes: float = math.inf
    is_unified: bool = False

    def holds(self, device_bytes: float, host_bytes: float) -> bool:
        """Return whether there is room for so many bytes of each."""
        if self.is_unified:
            return device_bytes + host_bytes <= self.device_bytes
        return device_bytes <= self.device_bytes and host_bytes <= self.host_bytes


def worker_bytes(checkpoints: Iterable[tuple[Path, Quantize]]) -> int:
    """Return the bytes that a worker with these checkpoints takes: their weights, quantized so, and CUDA's context,
    without a KV cache. 0 for a worker without checkpoints, which does not run. Folders that are not there count
    nothing: loading them says so."""
    listed = set(checkpoints)
    return sum(loaded_bytes(*each) for each in listed) + CONTEXT_BYTES if listed else 0


def limit_problem(weights_bytes: int, root: Path = Path("/")) -> str | None:
    """Return what is wrong where a control group around this process allows less memory than the weights of a
    checkpoint take; None where there is no limit, or none that is so low."""
    limit = min((limit for _, _, limit in _memory_limits(root)), default=weights_bytes)
    if limit >= weights_bytes:
        return None
    return (
        f"The memory limit around this server is {limit / 2**30:.1f} GiB, and the weights of its largest checkpoint "
        f"take {weights_bytes / 2**30:.1f}: loading them may be refused, or ended by the kernel. Raise the limit "
        "(`docker run --memory`, `resources.limits.memory` in Kubernetes, `MemoryMax` of a service, `--mem` of Slurm)."
    )


def weights_budget(total: float, free: float, others: float) -> float:
    """Return the bytes for weights on a device: its share, which leaves room to draw, without the bytes that the other
    workers will use, and without those that programs that are not ours use now."""
    strangers = max(0.0, total - free - others)
    share = max(LEAST_SHARE * total, min(DEVICE_SHARE * total, total - DRAWING_BYTES))
    return max(0.0, share - others - strangers)


def offload_budget(host_bytes: float) -> float:
    """Return the bytes of a host's memory for weights that wait there for their turn on a device."""
    return max(LEAST_HOST_SHARE * host_bytes, host_bytes - HOST_RESERVE_BYTES)


def host_memory_bytes(root: Path = Path("/")) -> int:
    """Return the machine's memory, or the least that a control group around this process allows, if that is less. In
    containers of LXC the group with the limit can't be seen, and /proc/meminfo alone has it, by lxcfs."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = _meminfo_bytes(root, "MemTotal")
    return min([physical, *told, *(limit for _, _, limit in _memory_limits(root))])


def available_host_bytes(root: Path = Path("/")) -> int:
    """Return what programs can still take of the host's memory, of the machine's and of each control group around this
    process: pages that only cache files count, as the kernel gives them back. All of it where the system does not
    say."""
    left = [limit - _used_bytes(folder, kind) for folder, kind, limit in _memory_limits(root)]
    left += _meminfo_bytes(root, "MemAvailable")
    return max(0, min(left, default=host_memory_bytes(root)))


def _meminfo_bytes(root: Path, wanted: str) -> list[int]:
    """Return a figure of /proc/meminfo; none where it is not there."""
    fields = (line.partition(":") for line in _lines(root / "proc/meminfo"))
    return [int(value.split()[0]) * 1024 for name, _, value in fields if name == wanted]


def _used_bytes(folder: Path, kind: str) -> int:
    """Return what a control group uses and the kernel can't give back by dropping pages of files."""
    used = sum(int(text) for text in _lines(folder / USAGE_FILES[kind]))
    fields = (line.split() for line in _lines(folder / "memory.stat"))
    return used - sum(int(value) for name, value in fields if name in RECLAIMED[kind])


def _memory_limits(root: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield the folder, the type and the memory limit in bytes of the control groups that this process is in
    (cgroups(7)), of the own one and of each above it that can be seen from here: those of a container, of a systemd
    slice or unit. A group inside another has less than either allows. `root` has `proc` and `sys`; where it has none,
    as on other systems than Linux, there is no limit."""
    groups = _own_groups(root)
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, system = line.partition(" - ")
        kind, _, options = system.split(" ", 2)
        if kind not in groups or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        shown, point = mount.split(" ")[3:5]  # the group that is mounted, and where
        folder = root / point.lstrip("/")
        for group in _with_parents(groups[kind], PurePosixPath(shown)):
            for text in _lines(folder / group / LIMIT_FILES[kind]):
                if text.isdecimal():  # or "max"
                    yield folder / group, kind, int(text)


def _own_groups(root: Path) -> dict[str, PurePosixPath]:
    """Return the process's group for memory, by type of file system."""
    groups = {}
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            groups["cgroup2"] = PurePosixPath(path)
        elif "memory" in controllers.split(","):
            groups["cgroup"] = PurePosixPath(path)
    return groups


def _with_parents(group: PurePosixPath, shown: PurePosixPath) -> list[PurePosixPath]:
    """Return the group and those above it, as paths below the one that is shown; that one alone where the group is
    outside."""
    if not group.is_relative_to(shown) or ".." in group.parts:
        return [PurePosixPath()]
    inside = group.relative_to(shown)
    return [inside, *inside.parents]


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.is_file() else []
