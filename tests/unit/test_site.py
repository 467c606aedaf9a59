"""The site of docs/ builds without a warning, asks no other host, and obeys the console's Content-Security-Policy."""

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from server.data_folders import REPOSITORY

PYTHON = REPOSITORY / ".venv-supply" / "bin" / "python"
ASSET = re.compile(r"<(?:link|script|img|source|iframe)\b[^>]*?(?:src|href)=[\"']?(https?:)?//", re.IGNORECASE)
INLINE = re.compile(r"<script(?![^>]*(?:src=|application/json))[^>]*>|<style|\sstyle=|\son\w+=", re.IGNORECASE)
VENDORED = REPOSITORY / "docs" / "reference" / "api"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site. In CI its tools must be there."""
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", "import mkdocs"], check=False).returncode:
        assert not os.environ.get("CI"), "`make docs` has not brought mkdocs"
        pytest.skip("`make docs` brings mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [PYTHON, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_and_asks_no_other_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text()
        assert not ASSET.search(text), page
        assert not INLINE.search(re.sub(r"<(code|pre)\b.*?</\1>", "", text, flags=re.DOTALL)), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", sheet.read_text()), sheet


def test_swagger_ui_is_the_one_of_its_package() -> None:
    vendored = json.loads((VENDORED / "vendor.json").read_text())
    sums = {name: hashlib.sha256((VENDORED / name).read_bytes()).hexdigest() for name in vendored["sha256"]}
    assert sums == vendored["sha256"]
