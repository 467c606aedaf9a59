"""For all tests: their environment, their order, and the folder that all workers share."""

import os
import tempfile
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.shared import VARIABLE

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes of tests share two cores, and so do their servers
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it when it is imported, before a cluster of a test is there

# A busy machine is no failure, and examples are the same in every run
settings.register_profile("darkroom", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("darkroom")

FOLDERS = ("e2e", "real", "engines", "simulated_gpu", "gpu", "unit")  # the quickest last: they even out the workers
SESSION_SERVERS = ("chat", "responses_server", "server")  # fixtures of tests/e2e/conftest.py
FILES_A_TURN = 4
ENDS_AT = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reverse", action="store_true", help="run the tests in reverse order")
    parser.addoption("--turn", type=int, default=0, help=f"begin {FILES_A_TURN} files later for each turn")
    parser.addoption("--minutes", type=float, default=float("inf"), help="skip the tests that have not begun by then")


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder that all workers share; they inherit its name."""
    config.stash[ENDS_AT] = time.monotonic() + 60 * config.getoption("minutes")
    if VARIABLE not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="darkroom-tests-")
        os.environ[VARIABLE] = folder.name
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(lambda: os.environ.pop(VARIABLE))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put slow folders first, and files that use the same server side by side: a worker starts it once."""
    files = [list(group) for _, group in groupby(items, lambda item: item.path)]
    files.sort(key=_place)
    begin = config.getoption("turn") * FILES_A_TURN % max(1, len(files))
    items[:] = [item for file in files[begin:] + files[:begin] for item in file]
    if config.getoption("reverse"):
        items.reverse()


def _place(file: list[pytest.Item]) -> tuple[int, int]:
    """Return where a file's tests belong in the order of a run."""
    folder = file[0].path.relative_to(Path(__file__).parent).parts[0]
    used = {name for item in file for name in SESSION_SERVERS if _is_of_session(item, name)}
    server = next((place for place, name in enumerate(SESSION_SERVERS) if name in used), len(SESSION_SERVERS))
    return FOLDERS.index(folder), server


def _is_of_session(item: pytest.Item, fixture: str) -> bool:
    """Return whether a test uses this fixture, and no fixture of its own file under this name."""
    found = item._fixtureinfo.name2fixturedefs.get(fixture) if isinstance(item, pytest.Function) else None
    return bool(found) and found[-1].scope == "session"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[ENDS_AT]:
        pytest.skip("the minutes of this run are over")


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Commands that run in this process make their files private, and would later ones of other tests."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
