"""SHA-256 sums of a checkpoint's files, beside it, as sha256sum writes them.

`sha256sum -c NAME.sha256` checks them too, on a machine without Darkroom.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipelines.catalog.file_versions import checkpoint_files

SUFFIX = ".sha256"
CHUNK_BYTES = 2**22
LINE = re.compile(r"([0-9a-fA-F]{64})[ \t]+\*?(?:\./)?(.+)")  # of sha256sum
TAGGED = re.compile(r"SHA256 \((?:\./)?(.+)\) = ([0-9a-fA-F]{64})")  # of shasum and sha256sum --tag
SUM = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Checked:
    """A file of a checkpoint against its manifest. "new" is a file that the manifest lacks."""

    file: str  # relative to the manifest's folder
    state: Literal["unchanged", "changed", "missing", "new"]


def manifest_of(checkpoint: Path) -> Path:
    """Return the path of a checkpoint's manifest: beside it, since it would be a change of the checkpoint inside."""
    return checkpoint.with_name(checkpoint.name + SUFFIX)


def write_manifest(checkpoint: Path, sums: Mapping[Path, str]) -> Path:
    """Write the manifest with these sums of its files. Raises OSError."""
    manifest = manifest_of(checkpoint)
    part = manifest.with_suffix(".part")
    part.write_text("".join(f"{sum_}  {file.relative_to(checkpoint.parent)}\n" for file, sum_ in sums.items()))
    part.replace(manifest)
    return manifest


def read_sums(manifest: Path) -> dict[str, str]:
    """Return the sums of a manifest by the names of its files, which are relative to its folder. A sum without a name
    is that of the file that the manifest is called after. Raises OSError."""
    sums: dict[str, str] = {}
    for line in manifest.read_text("utf-8-sig", errors="replace").splitlines():
        if match := LINE.fullmatch(line):
            sums[match[2]] = match[1].lower()
        elif match := TAGGED.fullmatch(line):
            sums[match[1]] = match[2].lower()
        elif SUM.fullmatch(line.strip()):
            sums[manifest.name.removesuffix(SUFFIX)] = line.strip().lower()
    return sums


def verify(checkpoint: Path) -> Iterator[Checked]:
    """Compare the files with the manifest, and yield each file as it is checked. Raises OSError, also if there is no
    manifest."""
    sums = read_sums(manifest_of(checkpoint))
    present = {str(file.relative_to(checkpoint.parent)): file for file in checkpoint_files(checkpoint)}
    for name in sorted(sums.keys() | present.keys()):
        if name not in present:
            yield Checked(name, "missing")
        elif name not in sums:
            yield Checked(name, "new")
        else:
            yield Checked(name, "unchanged" if sha256_of(present[name]) == sums[name] else "changed")


def sha256_of(file: Path, send: Callable[[int], None] = lambda _: None) -> str:
    """Return a file's sum in hexadecimal. `send` is given the number of bytes of each part that was read."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while part := stream.read(CHUNK_BYTES):
            digest.update(part)
            send(len(part))
    return digest.hexdigest()
