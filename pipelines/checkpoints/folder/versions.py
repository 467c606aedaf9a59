"""Which files a checkpoint has, and whether they are those that were loaded: by their bytes and place, unread.

In the cache of huggingface_hub, `models--x--y` has `refs`, `snapshots` of links, and the `blobs` that they lead to,
which several snapshots may share.

A file's version is its size, both its times of change and its inode, not the newest of some dates: `cp -p`, rsync, tar
and unzip put older dates on newer files, and `mv` keeps them. A tool that changes an entry and no byte (chmod, hard
links of a backup) makes another version, too. That costs one load at the next reload; a change that is not seen costs
wrong images. Inodes and times are those of one machine: versions that machines compare are made of sums
(`Digests.version`).
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

PEFT_FILE: Final = "adapter_model.safetensors"
PEFT_CONFIG: Final = "adapter_config.json"
BESIDE: Final = ("[!.]*.json", "[!.]*.jinja", "[!.]*.model", "[!.]*.txt")  # of a .gguf file: its tokenizer and template
# Of files for people, which no load opens. All others count: one that is not read costs a load, one that is left out
# wrong images
UNREAD: Final = frozenset({".md", ".png", ".jpg", ".jpeg", ".webp", ".gif"})
HUB_CACHE: Final = "models--"  # how the folder of a repository begins


class FileVersion(NamedTuple):
    """Equal while nobody writes to the file or puts another in its place."""

    path: Path
    bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    beside: tuple[int, ...] = ()  # the same of the file with an adapter's strength

    @classmethod
    def of(cls, path: Path) -> "FileVersion":
        """Return the file's version now. Raises OSError."""
        found = path.stat()
        config = cls.find(path.with_name(PEFT_CONFIG)) if path.name == PEFT_FILE else None
        beside = config.state if config is not None else ()
        return cls(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, beside)

    @classmethod
    def find(cls, path: Path) -> "FileVersion | None":
        """Return the file's version now; None if it can't be found."""
        try:
            return cls.of(path)
        except (OSError, ValueError):  # a name that is too long, or has a zero byte
            return None

    @property
    def state(self) -> tuple[int, ...]:
        """Return the version without the file's name."""
        return (self.bytes, self.mtime_ns, self.ctime_ns, self.inode, *self.beside)


def files_version(sources: Iterable[Path]) -> str:
    """Return the version of all files that a load of these folders and files may read."""
    digest = hashlib.sha256()
    for number, source in enumerate(sources):
        for name, file in loaded_files(source):
            version = FileVersion.find(file)
            digest.update(f"{number} {name!r} {version and version.state}\n".encode())
    return digest.hexdigest()[:32]


def loaded_files(source: Path) -> list[tuple[str, Path]]:
    """List the files that a load of a folder or a file may read, in order, each with its name there."""
    files = [file for file in checkpoint_files(source) if file == source or file.suffix.lower() not in UNREAD]
    named = [(str(file.relative_to(source)), file) for file in files]
    if source.suffix == ".gguf" and files == [source]:
        named += sorted((file.name, file) for pattern in BESIDE for file in source.parent.glob(pattern))
    return named


def checkpoint_files(checkpoint: Path) -> list[Path]:
    """List a checkpoint's files in order. A hub cache folder's snapshot has links to its files, which count by their
    names. Hidden files and folders, which tools keep, are no part of a checkpoint."""
    inside = [(file, file.relative_to(checkpoint).parts) for file in files_in(checkpoint)]
    return [
        file for file, parts in inside if parts[:1] != ("blobs",) and not any(part.startswith(".") for part in parts)
    ]


def files_in(path: Path) -> list[Path]:
    """List all files below a folder, in order, with those behind links to folders, which `rglob` leaves out. What is no
    folder is listed alone. A link to a folder that it is in leads nowhere new."""
    root = _status(path)
    if root is None or not stat.S_ISDIR(root.st_mode):
        return [path]
    found: list[Path] = []
    folders = [(path, frozenset({(root.st_dev, root.st_ino)}))]
    while folders:
        folder, above = folders.pop()
        for each in _inside(folder):
            status = _status(each)
            if status is not None and stat.S_ISREG(status.st_mode):
                found.append(each)
            elif status is not None and stat.S_ISDIR(status.st_mode):
                place = (status.st_dev, status.st_ino)
                folders += [(each, above | {place})] if place not in above else []
    return sorted(found)


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it may not be entered, so nothing in it can be loaded
        return []


def _status(path: Path) -> os.stat_result | None:
    """Return the state of what a path or a link leads to; None if that is nothing that can be found."""
    try:
        return path.stat()
    except (OSError, ValueError):  # such as a name that is too long, or has a zero byte
        return None


def find_snapshot(path: Path) -> Path:
    """Return the folder of files that a hub cache folder (models--x--y) stands for, by its refs: main, or the only one.
    Other paths are returned as they are."""
    if not path.name.startswith(HUB_CACHE) or not (path / "snapshots").is_dir():
        return path
    refs = [path / "refs" / "main", *sorted((path / "refs").glob("*"))]
    named = [path / "snapshots" / ref.read_text().strip() for ref in refs if ref.is_file()]
    return next((folder for folder in [*named, *sorted((path / "snapshots").iterdir())] if folder.is_dir()), path)


def cache_of(path: Path) -> Path | None:
    """Return the cache folder of a repository that this path is in, or is."""
    return next((folder for folder in (path, *path.parents) if folder.name.startswith(HUB_CACHE)), None)


def shortened(path: Path) -> Path:
    """Return the cache folder in place of the snapshot that it stands for. The cache folder does not stand for files
    inside and other snapshots, so they and paths elsewhere stay as they are."""
    cache = cache_of(path)
    return cache if cache is not None and find_snapshot(cache) == path else path


def delete(path: Path, weights: Path) -> None:
    """Delete a file, a folder or a link; then the blobs that it led to, unless something under `weights` still links to
    them. Raises OSError."""
    is_folder = path.is_dir() and not path.is_symlink()
    files = path.rglob("*") if is_folder else [path]
    blobs = {file.resolve() for file in files if file.is_symlink() and _is_blob(file.resolve(), weights)}
    if is_folder:
        shutil.rmtree(path)
    else:
        path.unlink()
    linked = {file.resolve() for file in files_in(weights) if file.is_symlink()} if blobs else set()
    for blob in blobs - linked:
        blob.unlink(missing_ok=True)  # it was in the folder itself


def _is_blob(file: Path, weights: Path) -> bool:
    in_cache = file.parent.name == "blobs" and file.parent.parent.name.startswith(HUB_CACHE)
    return in_cache and file.is_relative_to(weights.resolve())
