"""Paths inside the cache of huggingface_hub: `models--x--y` has `refs`, `snapshots` of links, and the `blobs` that they
lead to, which several snapshots may share."""

import shutil
from pathlib import Path

from pipelines.catalog.checkpoint_files import find_snapshot
from pipelines.catalog.file_versions import files_in
from pipelines.catalog.folder_problems import HUB_CACHE


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
