"""What a message says of an extra that is missing can be done, however the server was installed."""

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from server import data_folders
from server.data_folders import REPOSITORY, extra_command
from tests.support.dry_runs import DryRun, Problem

EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_every_extra_that_the_server_asks_for_is_there() -> None:
    code = "".join(file.read_text() for file in (REPOSITORY / "server").rglob("*.py"))
    named = set(re.findall(r"""extra_command\(["'](\w+)["']\)""", code))
    assert {"cluster", "postgres", "storage"} <= named <= EXTRAS.keys()
    code = code.replace(" -m pip install 'darkroom[", "").replace("pip install --force-reinstall torch`", "")
    assert "pip install" not in code  # another pip, and other versions


def test_a_checkout_is_told_what_make_knows() -> None:
    command = extra_command("storage").split()
    assert command == ["make", "install", "EXTRAS=storage"]
    DryRun(None).make(command)  # type: ignore[arg-type]
    with pytest.raises(Problem):
        DryRun(None).make(extra_command("strage").split())  # type: ignore[arg-type]


def test_a_wheel_and_the_image_are_told_what_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_folders, "REPOSITORY", tmp_path)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    assert extra_command("storage") == "docker build with --build-arg EXTRAS=...,storage"
    monkeypatch.setattr(data_folders, "STARTERS", tmp_path)
    assert extra_command("storage") == f"{sys.executable} -m pip install 'darkroom[storage]'"
