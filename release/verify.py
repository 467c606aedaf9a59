"""`make verify`: is everything here as it was bundled, and does it suit this machine? Needs no package, only Python."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SUMS, MANIFEST = "SHA256SUMS", "BUNDLE.json"
OWN_FOLDERS = {".venv", ".venv-supply", "darkroom-home", "build", "__pycache__"}  # that use makes
OWN_SUFFIXES = (".egg-info",)
CHUNK_BYTES = 2**20


def files_below(root: Path) -> Iterator[Path]:
    """All files of a bundle, relative to its root, without what using it makes."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in OWN_FOLDERS and not name.endswith(OWN_SUFFIXES)]
        for name in names:
            path = Path(folder, name).relative_to(root)
            if str(path) != SUMS:
                yield path


def sha256_of(path: Path) -> str:
    """In hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_sums(root: Path) -> int:
    """Write SHA256SUMS, as sha256sum --check reads it. Returns the number of files."""
    paths = sorted(files_below(root))
    (root / SUMS).write_text("".join(f"{sha256_of(root / path)}  {path}\n" for path in paths))
    return len(paths)


def differences(root: Path) -> list[str]:
    """What is missing, changed, or there without being listed."""
    listed: dict[str, str] = {}
    for line in (root / SUMS).read_text().splitlines():
        digest, _, name = line.partition("  ")
        listed[name] = digest
    found = []
    for name, digest in listed.items():
        path = root / name
        if not path.is_file():
            found.append(f"missing: {name}")
        elif sha256_of(path) != digest:
            found.append(f"changed: {name}")
    unlisted = sorted(str(path) for path in files_below(root) if str(path) not in listed)
    return found + [f"not in the bundle: {name}" for name in unlisted]


def unsuitable(manifest: dict[str, Any], python: str, machine: str, glibc: str) -> list[str]:
    """Why the wheels can't be installed here."""
    problems = []
    if manifest["python"] != python:
        wanted = manifest["python"]
        problems.append(f"the wheels are for Python {wanted}, and this is {python}: make PYTHON=python{wanted} ...")
    if manifest["machine"] != machine:
        problems.append(f"the wheels are for {manifest['machine']}, and this machine is {machine}")
    if _numbers(glibc) < _numbers(manifest["glibc"]):
        problems.append(
            f"the wheels are for glibc {manifest['glibc']} or newer, and this is {glibc or 'another C library'}"
        )
    return problems


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".") if number]


def main(root: Path = ROOT) -> int:
    if not (root / SUMS).is_file() or not (root / MANIFEST).is_file():
        print(f"{root} is no bundle: it has no {SUMS} and {MANIFEST}. `make bundle` makes one.", file=sys.stderr)
        return 2
    manifest = json.loads((root / MANIFEST).read_text())
    python = ".".join(platform.python_version_tuple()[:2])
    problems = differences(root) + unsuitable(manifest, python, platform.machine(), platform.libc_ver()[1])
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print("Do not install this bundle.", file=sys.stderr)
        return 1
    print(
        f"Darkroom {manifest['version']} ({manifest['commit'][:12]}), torch for {manifest['torch']}: all "
        f"{len((root / SUMS).read_text().splitlines()):,} files are as they were bundled."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
