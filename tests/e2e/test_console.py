"""The console in a real browser: Chromium, if it is installed (`npm ci` in tests/node installs what drives it)."""

import json
import shutil
import subprocess

import pytest

from tests.support.harness import REPOSITORY, Server, charges

NODE = REPOSITORY / "tests" / "node"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.skipif(not (NODE / "node_modules" / "playwright-core").exists(), reason="npm ci in tests/node")
def test_a_person_draws_changes_and_is_told_what_is_wrong(server: Server) -> None:
    before = charges(server)
    done = subprocess.run(
        ["node", "console.mjs", str(CHROMIUM), server.base, server.key],
        cwd=NODE,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["errors"] == []
    assert told["asked"] == [server.base]  # no packet goes anywhere else
    assert "Incorrect API key" in told["refusedKey"]
    assert told["models"] == 10
    assert told["qualityHidden"]
    first, second = told["rounds"]
    assert first["message"].startswith("Done in")
    assert (first["width"], first["height"], first["of"]) == (1792, 1024, "a red boat at sunset")
    assert (second["width"], second["height"], second["of"]) == (1792, 1024, "make it night")
    assert "without guidance" in told["refusal"]
    assert (told["focus"], told["visible"]) == ("guidance", True)
    assert told["references"] == 0
    assert told["keyKept"]
    assert charges(server) == before + 2
