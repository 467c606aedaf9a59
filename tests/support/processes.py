"""The memory of a server and of the processes that it started, as the kernel counts it."""

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


def group(pid: int) -> list[int]:
    """The process and its descendants."""
    parents: dict[int, int] = {}
    for path in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def status_bytes(pid: int, name: str) -> int:
    """A line of /proc/PID/status, such as VmRSS or VmHWM; 0 if the process has ended."""
    try:
        match = re.search(rf"^{name}:\s+(\d+) kB", (PROC / str(pid) / "status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


def processor_s(pid: int) -> float:
    """The processor time of a process and of those that it started and that still run."""
    ticks = 0
    for one in group(pid):
        with contextlib.suppress(OSError):
            fields = (PROC / str(one) / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # of the user and of the system
    return ticks / os.sysconf("SC_CLK_TCK")


def command_of(pid: int) -> bytes:
    """The words of its command, each with a zero byte at its end; nothing if the process has ended."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


@dataclass
class Growth:
    """How much more memory was resident at the highest point than at the beginning."""

    server_bytes: int = 0
    group_bytes: int = 0


@contextlib.contextmanager
def measured_growth(pid: int) -> Iterator[Growth]:
    """Measures while it is entered; what it yields is complete afterwards."""
    growth, ended = Growth(), threading.Event()
    (PROC / str(pid) / "clear_refs").write_text("5")  # VmHWM begins anew
    server_before, group_before = status_bytes(pid, "VmRSS"), _loaded_bytes(group(pid))

    def sample() -> None:
        while not ended.is_set():
            pids = group(pid)
            for _ in range(5):  # to find them costs more than to read them
                growth.group_bytes = max(growth.group_bytes, _loaded_bytes(pids) - group_before)
                ended.wait(0.05)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield growth
    finally:
        ended.set()
        sampler.join()
        growth.server_bytes = status_bytes(pid, "VmHWM") - server_before


def _loaded_bytes(pids: list[int]) -> int:
    return sum(status_bytes(pid, "VmRSS") for pid in pids)
