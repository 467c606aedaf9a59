"""Tests that need the simulated GPU, as they make it fail or ask what it has seen. tests/simulated_gpu runs them."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.simulated_gpu import device
from tests.support.harness import until

HERE = Path(__file__).parent
NIGHTS = 8  # after which every place where something can fail has had its turn
TONIGHT = int(os.environ.get("TURN", "0")) % NIGHTS
Part = tuple[int, int]  # the first place, and how far it is to the next


def parts(count: int) -> list[Part]:
    """Return this night's parts of the places where something can fail, out of so many for each night."""
    return [(TONIGHT + NIGHTS * part, NIGHTS * count) for part in range(count)]


def daily_and(count: int) -> list[Any]:
    """Return one part for every run of the tests, and this night's parts."""
    return [(0, 16 * NIGHTS), *(pytest.param(part, marks=pytest.mark.nightly) for part in parts(count))]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if device.extension is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="runs on the simulated GPU: tests/simulated_gpu"))


@pytest.fixture
def gpu() -> Any:
    """What the simulated GPU can be told (csrc/extension.cpp)."""
    return device.extension


def allocated_bytes() -> int:
    """Return the bytes of the tensors on the device that somebody still knows."""
    gc.collect()
    return torch.cuda.memory_allocated()


@pytest.fixture(scope="session")
def lost_bytes() -> list[int]:
    """What stayed allocated after each test whose threads ended where their process would: they can't free it."""
    return []


@pytest.fixture
def empty_gpu(lost_bytes: list[int]) -> None:
    """The simulated GPU, once the engines of earlier tests have given all of it back: their threads may still be at the
    end of a turn."""
    until(lambda: allocated_bytes() <= max(lost_bytes, default=0))
