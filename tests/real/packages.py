"""Packages that carry weights or tokenizers: fetched once by the clients of their registries, and read as data."""

import contextlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.harness import REPOSITORY

CACHE = REPOSITORY / ".nightly" / "packages"
LIMIT_S = 300
DOWNLOAD = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]


def python_package(name: str) -> Path:
    """Return the folder of an unpacked wheel. Skips the test where the package can't be had."""
    return _unpacked(name, [*DOWNLOAD, "-d"], "*.whl")


def source_package(name: str, wanted: str) -> Path:
    """Return the folder of an unpacked source package, of which only the files that match are kept. Skips the test
    where the package can't be had."""
    return _unpacked(name, [*DOWNLOAD, "--no-binary", name, "-d"], "*.tar.gz", wanted)


def npm_package(name: str) -> Path:
    """Return the folder of an unpacked npm package. Skips the test where the package can't be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"{name}: npm is not installed")
    return _unpacked(name, [npm, "pack", "--silent", "--pack-destination"], "*.tgz") / "package"


def _unpacked(name: str, command: list[str], pattern: str, wanted: str = "*") -> Path:
    folder = CACHE / name.replace("/", "-").removeprefix("@")
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        new = Path(scratch) / "new"
        try:
            subprocess.run([*command, scratch, name], check=True, capture_output=True, timeout=LIMIT_S)
            archive = next(Path(scratch).glob(pattern))
        except (subprocess.SubprocessError, StopIteration) as error:
            pytest.skip(f"the package {name} can't be had: {error}")
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(new)
        else:
            with tarfile.open(archive) as tar:
                members = [member for member in tar.getmembers() if fnmatch(member.name, wanted)]
                tar.extractall(new, members, filter="data")
        with contextlib.suppress(OSError):  # another process was first
            new.rename(folder)
    return folder
