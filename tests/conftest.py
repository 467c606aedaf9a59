"""For all tests."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes of tests share two cores, and so do their servers
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it when it is imported, before a cluster of a test is there

# A busy machine is no failure, and examples are the same in every run
settings.register_profile("darkroom", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("darkroom")


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Commands that run in this process make their files private, and would later ones of other tests."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
