"""A release has one version everywhere, and one screen of the changelog."""

import re
import tomllib

from tests.support.harness import REPOSITORY

VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
SCREEN = 60  # lines


def test_images_are_named_by_the_version() -> None:
    files = [REPOSITORY / "Dockerfile.cuda", *(REPOSITORY / "deploy").rglob("*.yaml")]
    assert {tag for file in files for tag in re.findall(r"\bdarkroom:(\d+\.[\w.]+)", file.read_text())} == {VERSION}


def test_the_changelog_begins_with_this_version_and_has_a_screen_for_each() -> None:
    _, unreleased, *released = re.split(r"^## ", (REPOSITORY / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert unreleased.startswith("[Unreleased]\n")
    assert released[0].startswith(f"[{VERSION}] - ")
    assert {text.split()[0]: len(text.splitlines()) for text in released if len(text.splitlines()) > SCREEN} == {}
