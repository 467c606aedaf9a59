"""Memory budgets: of the container, of a device that others use too, and the dtype of old GPUs."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipelines.checkpoints.memory.shares import (
    DEVICE_SHARE,
    available_host_bytes,
    host_memory_bytes,
    limit_problem,
    offload_budget,
    weights_budget,
)
from pipelines.device import memory
from pipelines.device.memory import Budgets, compute_dtype, device_memory

GIB = 2**30
PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


V2 = "30 23 0:26 {shown} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:27 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:28 {shown} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:29 {shown} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
UNLIMITED_V1 = "9223372036854771712"


@pytest.mark.parametrize(
    ("mounts", "shown", "own", "limits", "expected"),
    [
        # the container's own limit, as a cgroup namespace shows it
        (V2, "/", "0::/", {"": "1073741824"}, 2**30),
        (V2, "/", "0::/", {"": "max"}, PHYSICAL),
        # MemoryMax of a unit; of its slice, where that is less; of both
        (V2, "/", "0::/system.slice/darkroom.service", {"system.slice/darkroom.service": "1073741824"}, 2**30),
        (V2, "/", "0::/system.slice/darkroom.service", {"system.slice": "536870912", "": "max"}, 2**29),
        (V2, "/", "0::/a/b", {"a": "1073741824", "a/b": "536870912"}, 2**29),
        (V2, "/", "0::/a/b", {"a": "536870912", "a/b": "1073741824"}, 2**29),
        # another unit's limit is none of ours
        (V2, "/", "0::/a", {"b": "536870912", "a": "max"}, PHYSICAL),
        # without a namespace the own path begins at the host's root, of which only the container's part is mounted
        (V2, "/docker/c0ffee", "0::/docker/c0ffee/worker", {"": "1073741824", "worker": "max"}, 2**30),
        (V2, "/", "0::/../other", {"": "1073741824"}, 2**30),
        # version 1, where each controller has a tree of its own
        (V1, "/", "4:memory:/\n3:cpu,cpuacct:/x\n0::/\n", {"": "536870912"}, 2**29),
        (V1, "/", "4:memory:/a/b\n0::/\n", {"": UNLIMITED_V1, "a": "536870912", "a/b": UNLIMITED_V1}, 2**29),
        (V1, "/docker/c0ffee", "4:memory:/docker/c0ffee\n", {"": "536870912"}, 2**29),
        (V1, "/", "4:memory:/a\n", {"a": UNLIMITED_V1}, PHYSICAL),
    ],
)
def test_the_least_limit_of_the_groups_around_the_process_counts(
    mounts: str, shown: str, own: str, limits: dict[str, str], expected: int, tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(mounts.format(shown=shown))
    (tmp_path / "proc/self/cgroup").write_text(own)
    tree, name = ("", "memory.max") if mounts == V2 else ("memory", "memory.limit_in_bytes")
    for group, limit in limits.items():
        folder = tmp_path / "sys/fs/cgroup" / tree / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{limit}\n")
    assert host_memory_bytes(tmp_path) == expected


def test_a_limit_that_meminfo_alone_tells_counts(tmp_path: Path) -> None:
    """As lxcfs does in containers of LXC, whose own group has none."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  1048576 kB\nMemFree:  8 kB\nMemAvailable:  524288 kB\n")
    assert host_memory_bytes(tmp_path) == 2**30
    assert available_host_bytes(tmp_path) == 2**29


def test_a_limit_below_the_weights_is_told(tmp_path: Path) -> None:
    assert limit_problem(10**12, tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(V2.format(shown="/"))
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{8 * 2**30}\n")
    assert limit_problem(8 * 2**30, tmp_path) is None
    assert str(limit_problem(24 * 2**30, tmp_path)).startswith(
        "The memory limit around this server is 8.0 GiB, and the weights of its largest checkpoint take 24.0: loading"
    )


def test_without_control_groups_the_machines_memory_counts(tmp_path: Path) -> None:
    assert host_memory_bytes(tmp_path) == PHYSICAL


@pytest.mark.parametrize(
    ("free", "others", "expected"),
    [
        (100, 0, 80),
        (100, 20, 60),  # they have not loaded yet
        (80, 20, 60),  # they have: it is not counted twice
        (60, 20, 40),  # and a program that is not ours uses 20
        (70, 0, 50),
        (5, 10, 0),
    ],
)
def test_the_budget_leaves_room_for_others_once(free: float, others: float, expected: float) -> None:
    assert DEVICE_SHARE == 0.8
    assert weights_budget(100 * GIB, free * GIB, others * GIB) == pytest.approx(expected * GIB)


@pytest.mark.parametrize(("total", "expected"), [(4, 2), (7.6, 4.1), (11.6, 8.1), (24, 19.2)])
def test_a_small_device_keeps_room_to_draw_and_half_for_weights(total: float, expected: float) -> None:
    assert weights_budget(total * GIB, total * GIB, 0) == pytest.approx(expected * GIB)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 0), torch.float16), ((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)],
)
def test_gpus_that_emulate_bfloat16_compute_in_float16(
    capability: tuple[int, int], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert compute_dtype("auto", torch.device("cuda")) == expected
    assert compute_dtype("bfloat16", torch.device("cuda")) == torch.bfloat16


def test_workers_on_the_cpu_divide_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.device.memory.host_memory_bytes", lambda: 64 * GIB)
    alone, one_of_two = (Budgets.of(torch.device("cpu"), image_workers=workers) for workers in (1, 2))
    assert 2 * one_of_two.device_bytes == pytest.approx(alone.device_bytes, abs=2)
    assert 2 * one_of_two.host_bytes == pytest.approx(alone.host_bytes, abs=2)
    assert Budgets.of(torch.device("cpu"), host_gib=8, image_workers=2).host_bytes == 4 * 2**30


MEMINFO = "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   41943040 kB\n"


@pytest.mark.parametrize(
    ("mounts", "own", "files", "expected"),
    [
        (V2, "0::/", {"memory.max": "max"}, 40 * GIB),
        (
            V2, "0::/",
            {
                "memory.max": str(32 * GIB), "memory.current": str(30 * GIB),
                "memory.stat": f"anon {4 * GIB}\nactive_file {16 * GIB}\ninactive_file {8 * GIB}\nslab_reclaimable 0\n",
            },
            26 * GIB,
        ),
        (
            V1, "4:memory:/\n",
            {
                "memory.limit_in_bytes": str(32 * GIB), "memory.usage_in_bytes": str(30 * GIB),
                "memory.stat": f"cache 1\ntotal_active_file {8 * GIB}\ntotal_inactive_file 0\n",
            },
            10 * GIB,
        ),
    ],
)  # fmt: skip
def test_pages_that_cache_files_are_left_to_programs(
    mounts: str, own: str, files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "proc/self/mountinfo").write_text(mounts.format(shown="/"))
    (tmp_path / "proc/self/cgroup").write_text(own)
    folder = tmp_path / "sys/fs/cgroup" / ("" if mounts == V2 else "memory")
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    assert available_host_bytes(tmp_path) == expected


@pytest.mark.parametrize(("host", "expected"), [(4, 2), (16, 12), (64, 60)])
def test_a_host_keeps_room_for_all_but_weights(host: int, expected: int) -> None:
    assert offload_budget(host * GIB) == expected * GIB


class Machine:
    """A GPU of 80 GiB in a host of 64 GiB, by what torch and the system say of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.device = torch.device("cuda", 0)
        self.free, self.total, self.reserved = 79.0, 80.0, 0.0
        self.available, self.is_integrated = 60.0, 0
        patch.setattr(torch.cuda, "mem_get_info", lambda _: (int(self.free * GIB), int(self.total * GIB)))
        patch.setattr(torch.cuda, "memory_reserved", lambda _: int(self.reserved * GIB))
        patch.setattr(
            torch.cuda, "get_device_properties", lambda _: SimpleNamespace(is_integrated=self.is_integrated, uuid="0-1")
        )
        patch.setattr(memory, "available_host_bytes", lambda: int(self.available * GIB))
        patch.setattr(memory, "host_memory_bytes", lambda: 64 * GIB)
        patch.setattr(memory, "numa_node", lambda _: None)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_budget_is_weighed_again_when_other_programs_come_and_go(machine: Machine) -> None:
    machine.free = 12.0
    budgets = Budgets.of(machine.device)
    assert budgets.device_bytes == 0
    machine.free = 80.0
    assert budgets.weigh(machine.device, 0).device_bytes == 64 * GIB
    machine.free, machine.reserved = 30.0, 40.0  # 10 are another program's
    assert budgets.weigh(machine.device, 0).device_bytes == 54 * GIB
    assert budgets.alone_bytes(machine.device) == 64 * GIB


def test_the_hosts_budget_is_what_is_left_of_it_now(machine: Machine) -> None:
    budgets = Budgets.of(machine.device)
    assert (budgets.host_bytes, budgets.offload_bytes) == (32 * GIB, 60 * GIB)
    machine.available = 10.0
    now = budgets.weigh(machine.device, 20 * GIB)  # of which 20 GiB are this worker's
    assert (now.host_bytes, now.offload_bytes) == (29 * GIB, pytest.approx(29 * GIB))
    machine.available = 60.0
    assert budgets.weigh(machine.device, 0).host_bytes == 32 * GIB


def test_an_operators_figures_stay(machine: Machine) -> None:
    budgets = Budgets.of(machine.device, device_gib=20, host_gib=8)
    machine.free = 1.0
    now = budgets.weigh(machine.device, 0)
    assert (now.device_bytes, now.host_bytes, now.offload_bytes) == (20 * GIB, 8 * GIB, 8 * GIB)


def test_one_memory_of_host_and_gpu_counts_what_the_kernel_gives_back(machine: Machine) -> None:
    """A GB10 that has read large files: CUDA says that 100 of its 120 GiB are used."""
    machine.is_integrated, machine.total, machine.free, machine.available = 1, 120.0, 20.0, 110.0
    budgets = Budgets.of(machine.device).weigh(machine.device, 0)
    assert budgets.device_bytes == 86 * GIB
    assert budgets.host_bytes == 0, "evicting moves nothing to another memory"
    assert budgets.room(machine.device).is_unified


def test_a_gpu_whose_memory_is_a_node_of_the_hosts_counts_the_files_cached_there(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grace Hopper."""
    folder = tmp_path / "sys/devices/system/node/node1"
    folder.mkdir(parents=True)
    (folder / "meminfo").write_text(
        "Node 1 MemTotal:       98304000 kB\nNode 1 Active(file):   8388608 kB\nNode 1 Inactive(file): 4194304 kB\n"
    )
    monkeypatch.setattr(memory, "numa_node", lambda _: 1)
    cached = memory.cached_bytes(machine.device, tmp_path)
    assert cached == 12 * GIB
    monkeypatch.setattr(memory, "cached_bytes", lambda _: cached)
    machine.free = 60.0
    assert device_memory(machine.device) == (72 * GIB, 80 * GIB)
