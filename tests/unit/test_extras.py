"""What a message says of an extra that is missing can be done, however the server was installed."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from pipelines.checkpoints.folder.libraries import EXTRAS as OF_LIBRARIES
from pipelines.checkpoints.folder.libraries import how_to_install
from pipelines.protocol import machine
from pipelines.protocol.machine import extra_command, packages_command
from server.data_folders import REPOSITORY
from tests.support.dry_runs import DryRun, Problem

EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_every_extra_that_the_server_asks_for_is_there() -> None:
    code = "".join(file.read_text() for file in (REPOSITORY / "server").rglob("*.py"))
    named = set(re.findall(r"""extra_command\(["'](\w+)["']\)""", code))
    assert {"cluster", "postgres", "storage"} <= named <= EXTRAS.keys()
    assert set(OF_LIBRARIES.values()) <= EXTRAS.keys()
    code = code.replace("pip install --force-reinstall torch`", "")
    assert "pip install" not in code  # another pip, and other versions


def test_a_checkout_is_told_what_make_knows() -> None:
    command = extra_command("storage").split()
    assert command == ["make", "install", "EXTRAS=storage"]
    DryRun(None).make(command)  # type: ignore[arg-type]
    with pytest.raises(Problem):
        DryRun(None).make(extra_command("strage").split())  # type: ignore[arg-type]


def test_a_wheel_and_the_image_are_told_what_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert extra_command("storage") == "docker build with --build-arg EXTRAS=...,storage"
    run = f"`RUN pip install --constraint {tmp_path}/constraints.txt torchao` and `USER 1000`"
    assert packages_command(["torchao"]) == f"docker build of an image FROM this one, with `USER root`, {run}"
    monkeypatch.setattr(machine, "STARTERS", tmp_path)
    assert extra_command("storage") == f"{sys.executable} -m pip install 'darkroom[storage]'"
    assert packages_command(["torchao", "mslk-cuda"]) == f"{sys.executable} -m pip install torchao mslk-cuda"


def test_a_bundle_is_told_to_install_without_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    for name in ("Makefile", "wheels/torch.whl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    told = how_to_install(["sdnq", "gguf"])
    pip = f"{sys.executable} -m pip install --no-index --find-links FOLDER --constraint {tmp_path}/constraints.txt sdnq"
    assert told == f"make install EXTRAS=gguf; and {pip}, with what `pip download sdnq` gets elsewhere in FOLDER"
