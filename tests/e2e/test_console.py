"""The console in a real browser: one spec of `tests/node/console/` a page, all against one server and one Chromium.

`npm ci` in `tests/node` (`make clients`) brings the browser. With CONSOLE_SCREENSHOTS=FOLDER the specs write images
of their pages there, of a server that draws as well as it can.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.harness import REPOSITORY, Server, assert_clean

NODE = REPOSITORY / "tests" / "node"
SPECS = sorted((NODE / "console").glob("*.spec.mjs"))
QUICK = {"sign-in", "generate"}  # the other pages are tested at night
SCREENSHOTS = os.environ.get("CONSOLE_SCREENSHOTS")
POLICY = """
[[rules]]
name     = "no-forbidden-things"
category = "test"
terms    = ["forbidden"]
"""


@pytest.fixture(scope="module")
def console_server(tmp_path_factory: pytest.TempPathFactory, weights: Path, chat_configs: Path) -> Iterator[Server]:
    """A server with few steps and a policy, whose key and operator the specs share. Its chat model is trained."""
    home = tmp_path_factory.mktemp("console-home")
    policy = home / "policy.toml"
    policy.write_text(POLICY)
    configs = REPOSITORY / "model_configs" if SCREENSHOTS else chat_configs
    trained, own = REPOSITORY / "weights", home / "weights"
    starters = trained if SCREENSHOTS else weights
    own.mkdir()
    (own / "starter-chat").symlink_to(trained / "starter-chat")
    for name in ("starter-alpha", "starter-beta"):
        (own / name).symlink_to(starters / name)
    shutil.copytree(starters / "starter-beta", own / "my-beta")  # that no model names
    running = Server(home, own, configs, {"moderation": str(policy)}).start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[str]:
    """The address of a Chromium. In CI a missing one is a failure."""
    if not (NODE / "node_modules" / "playwright-core").exists():
        assert not os.environ.get("CI"), "`make clients` has not brought the browser"
        pytest.skip("npm ci in tests/node brings the browser")
    running = subprocess.Popen(
        ["node", "console/browser.mjs"], cwd=NODE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    address = running.stdout.readline().strip()
    assert address.startswith("ws://"), "the browser did not start"
    yield address
    running.communicate(timeout=280)  # closes its input


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=() if name in QUICK else pytest.mark.nightly)
        for path in SPECS
        for name in [path.name.partition(".")[0]]
    ],
)
def test_page(path: Path, console_server: Server, browser: str) -> None:
    folder = [str((REPOSITORY / SCREENSHOTS).resolve())] if SCREENSHOTS else []
    run_spec(path, browser, console_server, console_server.base, *folder)


def run_spec(path: Path, browser: str, server: Server, base: str, *folder: str) -> None:
    """Run a spec on the server, which its browser finds at this URL."""
    done = subprocess.run(
        ["node", str(path), browser, base, server.key, server.admin_key, *folder],
        cwd=NODE,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_books_agree_after_all_that(console_server: Server) -> None:
    assert_clean(console_server)


def test_the_command_says_what_the_ledgers_page_said(console_server: Server) -> None:
    """The page's sums are those of /admin/usage and of its CSV: `ledger.spec.mjs`."""
    with console_server.http(console_server.admin_key) as client:
        by_http = client.get("/admin/usage", params={"by": "key,model"}).json()["data"]
    by_command = json.loads(console_server.darkroom("usage", "--by", "key,model", "--json").stdout)
    assert by_command == [{name: row[name] for name in by_command[0]} for row in by_http]
