"""Page faults and resident memory of a process that frees large tensors. Each case has a process of its own, which
reads its settings when it starts."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from server.backends.engine_layout import heap_on_cpu

PAGES = 16_384  # of 4 KiB in the tensor: 64 MiB, as an activation of a 1K image
PROGRAM = """
import resource, torch
from pathlib import Path
from pipelines.device.heap import return_freed_memory, share_one_arena

def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

share_one_arena()
use(), use()  # glibc asks for a little more than an aligned block that was freed
again, kept = use(), resident()
return_freed_memory()
print(again, kept - resident())
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


@dataclass(frozen=True, slots=True)
class Pages:
    """Faults of using as much memory again, and how many pages went back when that was asked for."""

    again: int
    returned: int


def measure(environment: Mapping[str, str]) -> Pages:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=dict(environment)
    )
    return Pages(*map(int, done.stdout.split()))


def test_what_a_pass_has_freed_is_there_for_the_next_and_goes_back_on_request() -> None:
    pages = measure(heap_on_cpu())
    assert pages.again < PAGES / 16
    assert pages.returned > PAGES * 3 / 4


def test_without_the_setting_each_pass_maps_its_memory_again() -> None:
    assert measure({}).again > PAGES / 2, "else there is nothing to set"


def test_the_tunables_of_the_operator_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_max=65536")
    assert heap_on_cpu() == {}
