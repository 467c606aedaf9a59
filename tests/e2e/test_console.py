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
def test_a_person_generates_edits_and_reads_errors(server: Server) -> None:
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
    result = json.loads(done.stdout)
    assert result["errors"] == []
    assert result["origins"] == [server.base]  # no other server gets a request
    assert "Incorrect API key" in result["refusedKey"]
    assert result["models"] == 10
    assert result["qualityHidden"]
    first, second = result["images"]
    assert first["message"].startswith("Done in")
    assert (first["width"], first["height"], first["alt"]) == (1792, 1024, "a red boat at sunset")
    assert (second["width"], second["height"], second["alt"]) == (1792, 1024, "make it night")
    assert "without guidance" in result["refusal"]
    assert (result["focus"], result["visible"]) == ("guidance", True)
    assert result["references"] == 0
    assert (result["stored"], result["visibleCookies"]) == ({}, "")
    assert result["cookies"] == [{"httpOnly": True, "sameSite": "Strict"}]
    assert result["signedOut"]
    assert charges(server) == before + 2
