"""SHA-256 sums of checkpoints, by which operators, and several servers, know with which weights they draw.

Those of a checkpoint that is added are beside it, as sha256sum writes them: `sha256sum -c NAME.sha256` checks them too,
on a machine without Darkroom. A file is read once: its sum is remembered until its version is another.
"""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipelines.checkpoints.classes.index import component_names
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.folder.versions import FileVersion, cache_of, checkpoint_files, loaded_files, shortened
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.protocol.images import CheckpointSpec

SUFFIX = ".sha256"
CHUNK_BYTES = 2**22
LINE = re.compile(r"([0-9a-fA-F]{64})[ \t]+\*?(?:\./)?(.+)")  # of sha256sum
TAGGED = re.compile(r"SHA256 \((?:\./)?(.+)\) = ([0-9a-fA-F]{64})")  # of shasum and sha256sum --tag
SUM = re.compile(r"[0-9a-fA-F]{64}")
LISTS = ("SHA256SUMS", "SHA256SUMS.txt", "sha256sums.txt")  # beside files of any names
SHOWN = 12  # of the digits of a sum


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


class Digests:
    """The sums of checkpoints. `memory` is the file in which they are kept."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._writing = threading.Lock()  # several changes read their files at once

    def of(self, checkpoint: Path, send: Callable[[int], None] = lambda _: None) -> str:
        """Return the sum of all files of a checkpoint with their names, or of a single file. Blocking: reads the files
        that have changed, and sends the number of bytes as it goes. Raises OSError."""
        files = checkpoint_files(checkpoint)
        sums = self.of_files(files, send)
        lines = [f"{sum_}  {file.relative_to(checkpoint)}\n" for file, sum_ in zip(files, sums, strict=True)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def of_files(self, files: Sequence[Path], send: Callable[[int], None] = lambda _: None) -> list[str]:
        """Return the sum of each file. Blocking, and sends, as `of` does. Raises OSError."""
        known, sums = self._read(), []
        for file in files:
            state = list(FileVersion.of(file).state)
            if (found := known.get(str(file))) is None or found[:-1] != state:
                found = [*state, sha256_of(file, send)]
                self._remember(file, found)  # a start that is broken off need not read it again
            sums.append(str(found[-1]))
        return sums

    def version(self, sources: Iterable[Path]) -> str:
        """Return what `files_version` does, of names and sums: the same on each machine that has these files. Blocking,
        as `of`. Raises OSError."""
        named = [(number, *each) for number, source in enumerate(sources) for each in loaded_files(source)]
        sums = self.of_files([file for _, _, file in named])
        lines = [f"{number} {name!r} {sum_}\n" for (number, name, _), sum_ in zip(named, sums, strict=True)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]

    def unread_bytes(self, checkpoint: Path) -> int:
        """Return how many bytes `of` will read. Raises OSError."""
        known = self._read()
        versions = [FileVersion.of(file) for file in checkpoint_files(checkpoint)]
        return sum(each.bytes for each in versions if known.get(str(each.path), [])[:-1] != list(each.state))

    def _read(self) -> dict[str, list[int | str]]:
        try:
            known: dict[str, list[int | str]] = json.loads(self._memory.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return known

    def _remember(self, file: Path, found: list[int | str]) -> None:
        """Add a sum to those that others have added meanwhile; those of files that are gone are left out."""
        part = self._memory.with_suffix(".part")
        with self._writing, contextlib.suppress(OSError):  # such as a full disk: the files are read again next time
            known = {name: each for name, each in self._read().items() if Path(name).exists()}
            part.write_text(json.dumps(known | {str(file): found}))
            part.replace(self._memory)


@dataclass(frozen=True, slots=True)
class PublishedSum:
    """The sum that a file should have, by a manifest beside it or by the name of its blob in a download cache."""

    sum: str
    source: Path

    def problem(self, file: Path, found: str) -> str | None:
        """Say what is wrong with a file of the sum `found`; None if it is this one."""
        if found == self.sum:
            return None
        is_blob = self.source == file.resolve()
        where = "its name in the download cache says" if is_blob else f"{self.source} says"
        advice = "Delete the blob and download it again" if is_blob else "Copy or download it again"
        meant = (
            "" if is_blob else f"; if it was changed on purpose, delete {self.source.name} or write the new sum there"
        )
        return (
            f"{file}: its SHA-256 begins with {found[:SHOWN]}, and {where} {self.sum[:SHOWN]}: it is damaged, or "
            f"another version. {advice}{meant}"
        )


def published_sums(file: Path, folders: Iterable[Path]) -> Iterator[PublishedSum]:
    """Yield the sums that a file should have: by manifests in its folder and in those above, up to one of `folders`,
    of the file and of what it links to."""
    target = file.resolve()
    if target.parent.name == "blobs" and cache_of(target) == target.parent.parent and SUM.fullmatch(target.name):
        yield PublishedSum(target.name, target)  # that of a small file is no SHA-256
    ends = {each for folder in folders for each in (folder.absolute(), folder.resolve())}
    for path in dict.fromkeys((file.absolute(), target)):
        for folder in path.parents:
            yield from _listed(path, folder)
            if folder in ends or not any(folder.is_relative_to(end) for end in ends):
                break


def _listed(path: Path, folder: Path) -> Iterator[PublishedSum]:
    """Yield the sums that the manifests of a folder have of a file in it or below."""
    name = path.relative_to(folder)
    called = (
        {f"{each}{SUFFIX}" for each in (name.parts[0], path.stem)} if len(name.parts) == 1 else {name.parts[0] + SUFFIX}
    )
    for manifest in (folder / each for each in (*sorted(called), *LISTS)):
        if not manifest.is_file() or manifest == path:
            continue
        try:
            sums = read_sums(manifest)
        except OSError:  # such as one that may not be read: it says nothing
            continue
        unnamed = sums.get(manifest.name.removesuffix(SUFFIX)) if len(name.parts) == 1 else None
        if (sum_ := sums.get(name.as_posix(), unnamed)) is not None:
            yield PublishedSum(sum_, manifest)


def check_sum(file: Path, found: str, folders: Iterable[Path]) -> None:
    """Compare the sum of a file with those that are published of it. Raises CheckpointError for another one."""
    for published in published_sums(file, folders):
        if (problem := published.problem(file, found)) is not None:
            raise CheckpointError(problem)


def has_published_sums(spec: CheckpointSpec) -> bool:
    """Return whether a sum is published of any weights of a checkpoint, or of its parts. Raises CheckpointError."""
    folders = _manifest_folders(spec)
    weights = _weights(CheckpointFiles.of(spec))
    return any(True for file in weights for _ in published_sums(file.path, folders))


def describe(spec: CheckpointSpec, digests: Digests, send: Callable[[int], None] = lambda _: None) -> str:
    """Describe a checkpoint in one line for the operator: class, components, size, and a hash over every weight file.
    Each is read if `digests` does not know it, with its bytes told to `send`, and compared with what is published of
    it. Raises CheckpointError."""
    files, folders = CheckpointFiles.of(spec), _manifest_folders(spec)
    index, weights = files.index, _weights(files)
    digest = hashlib.sha256()
    for file in weights:
        [sum_] = digests.of_files([file.path], send)
        check_sum(file.path, sum_, folders)
        digest.update(bytes.fromhex(sum_))
    size = sum(file.path.stat().st_size for file in weights)
    types = "/".join(sorted({tensor.dtype for file in weights for tensor in file.tensors}))
    parts = ", ".join(component_names(index))
    return f"{index['_class_name']} ({parts}), {size / 1e6:.1f} MB of {types}, sha256 {digest.hexdigest()[:16]}"


def _weights(files: CheckpointFiles) -> list[WeightFile]:
    return sorted((file for part in files.weights.values() for file in part), key=lambda file: file.path)


def _manifest_folders(spec: CheckpointSpec) -> list[Path]:
    """Return the folders beside a checkpoint and its parts, above which no manifest is looked for."""
    return [shortened(path).parent for path in spec.paths]
