"""For all tests: their environment, their order, and the folder that all workers share."""

import gc
import json
import os
import tempfile
import time
from collections.abc import Generator, Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.shared import VARIABLE, trust_one_certificate

gc.disable()  # until all tests are imported: a quarter of the time of a run went to looking through what stays
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes of tests share two cores, and so do their servers
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it when it is imported, before a cluster of a test is there

# A busy machine is no failure, and examples are the same in every run
settings.register_profile(
    "darkroom", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("darkroom")

FOLDERS = ("e2e", "real", "engines", "simulated_gpu", "gpu", "unit")  # the quickest last: they even out the workers
SESSION_SERVERS = ("chat", "responses_server", "server", "tiny_server")  # fixtures of tests/e2e/conftest.py
FILES_A_TURN = 4
ENDS_AT = pytest.StashKey[float]()
SERVERS = "servers.json"  # in the shared folder: the server of each test that uses one of the session


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
    trust_one_certificate()


class ByFileAndServer(LoadScopeScheduling):
    """Gives a worker all tests of a server of the session, or of a file, in the order of the run: each starts once.
    Those of a GPU share nothing, and go to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file.startswith("tests/gpu/test_") else self._servers.get(nodeid, file)

    @cached_property
    def _servers(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((Path(os.environ[VARIABLE]) / SERVERS).read_text())
        return found


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFileAndServer:
    config.option.loadscopereorder = False
    return ByFileAndServer(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave the parameters that `daily` does not name to the night."""
    daily = item.get_closest_marker("daily")
    case = item.callspec.id if daily else ""  # type: ignore[attr-defined]
    if daily and not any(fnmatchcase(case, name) for name in daily.args):
        item.add_marker(pytest.mark.nightly)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Refuse a `daily` that names no parameters of its test, and order what is left once `-m` has chosen."""
    for place, cases in groupby(items, lambda item: item.nodeid.partition("[")[0]):
        every = list(cases)
        if len(every) > 1 and every[0].get_closest_marker("daily") and all(map(_is_nightly, every)):
            raise pytest.UsageError(f"{place}: daily names none of its parameters")
    yield
    _order(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell the scheduler the tests' servers, before it has the tests, and let the garbage collector see what the tests
    make, and not what there is for all of them."""
    used = {item.nodeid: _servers_of([item])[:1] for item in session.items}
    part = Path(os.environ[VARIABLE]) / f"{SERVERS}.{os.getpid()}"
    part.write_text(json.dumps({test: names[0] for test, names in used.items() if names}))
    part.rename(part.with_name(SERVERS))
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def _is_nightly(item: pytest.Item) -> bool:
    return item.get_closest_marker("nightly") is not None


def _order(config: pytest.Config, items: list[pytest.Item]) -> None:
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
    used = _servers_of(file)
    return FOLDERS.index(folder), SESSION_SERVERS.index(used[0]) if used else len(SESSION_SERVERS)


def _servers_of(items: list[pytest.Item]) -> list[str]:
    return [name for name in SESSION_SERVERS if any(_is_of_session(item, name) for item in items)]


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
