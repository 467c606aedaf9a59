"""Memory budgets: of the container, of a device that others use too, and the dtype of old GPUs."""

import os
from pathlib import Path

import pytest
import torch

from pipelines.catalog.memory import DEVICE_SHARE, host_memory_bytes, weights_budget
from pipelines.device.memory import Budgets, compute_dtype

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("sys/fs/cgroup/memory.max", "1073741824\n", 2**30),
        ("sys/fs/cgroup/memory.max", "max\n", PHYSICAL),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n", 2**29),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n", PHYSICAL),
        ("absent", "", PHYSICAL),
    ],
)
def test_the_containers_limit_counts_where_it_is_less(file: str, text: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert host_memory_bytes(tmp_path) == expected


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
    assert weights_budget(100, free, others) == pytest.approx(expected)


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


def test_workers_on_the_cpu_divide_the_hosts_memory() -> None:
    alone, one_of_two = (Budgets.of(torch.device("cpu"), image_workers=workers) for workers in (1, 2))
    assert 2 * one_of_two.device_bytes == pytest.approx(alone.device_bytes, abs=2)
    assert 2 * one_of_two.host_bytes == pytest.approx(alone.host_bytes, abs=2)
    assert Budgets.of(torch.device("cpu"), host_gib=8, image_workers=2).host_bytes == 4 * 2**30
