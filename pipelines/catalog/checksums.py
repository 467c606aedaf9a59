"""The sums of a checkpoint's weights: the line by which operators know them, and those that are published of them."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.catalog.checkpoint_files import CheckpointError, CheckpointFiles
from pipelines.catalog.digests import Digests
from pipelines.catalog.hub_cache import cache_of, shortened
from pipelines.catalog.manifest import SUFFIX, SUM, read_sums
from pipelines.catalog.pipeline_index import component_names
from pipelines.catalog.weight_file import WeightFile
from pipelines.protocol.images import CheckpointSpec

LISTS = ("SHA256SUMS", "SHA256SUMS.txt", "sha256sums.txt")  # beside files of any names
SHOWN = 12  # of the digits of a sum


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
