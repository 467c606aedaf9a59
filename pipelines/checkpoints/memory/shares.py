"""How the memory of a machine and of its devices is divided between workers. Pure: the server reckons with it too."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from pipelines.checkpoints.memory.chat_files import loaded_bytes
from pipelines.protocol.images import Quantize

DEVICE_SHARE: Final = 0.8  # of its memory for weights; the rest is for activations
DRAWING_BYTES: Final = 7 * 2**29  # which an image of a megapixel may need beside the weights (benchmarks.memory --real)
LEAST_SHARE: Final = 0.5  # for weights on small devices, whose checkpoints draw smaller images
CHAT_CACHE_SHARE: Final = 0.15  # of the device's memory for the KV cache of chats, unless a setting says otherwise
CONTEXT_BYTES: Final = 2**30  # of a process on a GPU: CUDA's context and the libraries; 0.7 to 1.4 GiB on an H100
LIMIT_FILES: Final = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}  # by type of file system


def worker_bytes(checkpoints: Iterable[tuple[Path, Quantize]]) -> int:
    """Return the bytes that a worker with these checkpoints takes: their weights, quantized so, and CUDA's context,
    without a KV cache. 0 for a worker without checkpoints, which does not run. Folders that are not there count
    nothing: loading them says so."""
    listed = set(checkpoints)
    return sum(loaded_bytes(*each) for each in listed) + CONTEXT_BYTES if listed else 0


def limit_problem(weights_bytes: int, root: Path = Path("/")) -> str | None:
    """Return what is wrong where a control group around this process allows less memory than the weights of a
    checkpoint take; None where there is no limit, or none that is so low."""
    limit = min(_memory_limits(root), default=weights_bytes)
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


def host_memory_bytes(root: Path = Path("/")) -> int:
    """Return the machine's memory, or the least that a control group around this process allows, if that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_memory_limits(root)])


def _memory_limits(root: Path) -> Iterator[int]:
    """Yield the memory limits in bytes of the control groups that this process is in (cgroups(7)), of the own one and
    of each above it that can be seen from here: those of a container, of a systemd slice or unit. A group inside
    another has less than either allows. `root` has `proc` and `sys`; where it has none, as on other systems than Linux,
    there is no limit."""
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
                if text.isdigit():  # or "max"
                    yield int(text)


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
