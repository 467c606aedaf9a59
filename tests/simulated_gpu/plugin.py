"""A pytest plugin: `pytest -p tests.simulated_gpu.plugin tests/gpu` gives the tests a GPU, and their processes too.

A test fails if the device has seen a race in it, or memory that is freed too early.
"""

import os
from collections.abc import Generator

import pytest

from tests.simulated_gpu import device

if device.COUNT not in os.environ:
    os.environ.update(device.environment())
device.install_from_environment()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    device.log.take()
    try:
        yield
        faults = {f"{kind}: {text}\n  at {place}" for kind, text, place in device.log.faults()}
        assert not faults, "The simulated GPU has seen faults:\n" + "\n".join(sorted(faults))
    finally:
        device.log.take()
        device.extension.revive()
