"""Tests that need the simulated GPU, as they make it fail or ask what it has seen. tests/simulated_gpu runs them."""

from pathlib import Path
from typing import Any

import pytest

from tests.simulated_gpu import device

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if device.extension is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="runs on the simulated GPU: tests/simulated_gpu"))


@pytest.fixture
def gpu() -> Any:
    """What the simulated GPU can be told (csrc/extension.cpp)."""
    return device.extension
