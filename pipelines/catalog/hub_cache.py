"""Paths inside the cache of huggingface_hub: `models--x--y` has `refs`, `snapshots` of links, and the `blobs` that they
lead to, which several snapshots may share."""

import shutil
from pathlib import Path
from typing import Final

from pipelines.catalog.file_versions import files_in

HUB_CACHE: Final = "models--"  # how the folder of a repository begins


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
