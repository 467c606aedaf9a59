"""How much memory the control groups allow that this process is in: those of a container, of a systemd slice or unit,
and all around them (cgroups(7)). A group inside another has less than either allows."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

LIMIT_FILES: Final = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}  # by type of file system


def memory_limits(root: Path = Path("/")) -> Iterator[int]:
    """Yield the memory limits in bytes, of the own group and of each above it that can be seen from here. `root` has
    `proc` and `sys`; where it has none, as on other systems than Linux, there is no limit."""
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
