"""Backups: database, images, catalog and secrets in one file, made while the server runs; and put back.

The database is copied first. An image that is stored meanwhile is in the backup without a record, and one that is
deleted meanwhile has a record without a file: `darkroom ledger --check` names both. Putting a backup back removes no
image from the storage, which may be another server's, too, and the restored database does not own it.
"""

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from server.accounts.conversion import fill_from_sqlite
from server.accounts.copies import POSTGRESQL_NAME, SQLITE_NAME, check_copy, check_kind, copy_database, restore_database
from server.accounts.db import connect_database
from server.accounts.schema import is_newer, newest_schema, schema_problem, table_names
from server.accounts.stored_files import StorageOwner, StoredFiles
from server.backends.object_storage import local_folder, open_storage
from server.errors import StartError, StorageFailed
from server.flows.storage.owner import StorageMarks
from server.settings import Settings

MANIFEST, CATALOG, RESULTS, POLICY = "manifest.json", "model_configs", "results", "moderation.toml"
SECRETS = ("admin-key", "dev-key", "webhook-secret", "cluster-token", "swaps.json")


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup file, and what is in it."""

    path: Path
    size_bytes: int
    images: int
    schema: str
    left_out: tuple[str, ...]  # what a person might look for in it
    storage_problem: str | None = None  # why the restored database's servers remove nothing from the storage


def make_backup(settings: Settings, folder: Path) -> Backup:
    """Write a backup file into the folder, and return it. Raises StartError and OSError."""
    target = folder / f"darkroom-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar"
    with connect_database(settings.database_url) as database:
        schema = database.schema_version()
    if schema is None:
        raise StartError(settings.no_server_message)
    if is_newer(schema):
        raise StartError(schema_problem(schema))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        part = Path(scratch) / target.name  # nobody else's, also where two begin in the same second
        images = _write(settings, copy_database(settings.database_url, Path(scratch)), schema, part)
        with suppress(PermissionError):  # some disks have no modes
            part.chmod(0o600)
        part.replace(target)
    return Backup(target, target.stat().st_size, images, schema, _left_out(settings))


def _left_out(settings: Settings) -> tuple[str, ...]:
    """Name what a backup of these settings has not."""
    paths = {
        "checkpoints": settings.weights,
        "the file of engines": settings.engines if settings.engines != "auto" else None,
        "the certificate": settings.c2pa_certificate,
        "its key": settings.c2pa_key,
        "files of batches": settings.batch_folder,
    }
    named = [f"{what} ({path})" for what, path in paths.items() if path is not None]
    if local_folder(settings.images) is None:
        named.insert(0, f"the images, which are in {settings.images}: copy them with the store's own tools")
    return (*named, "settings of the environment")


def _write(settings: Settings, copy: Path, schema: str, file: Path) -> int:
    """Write the whole archive, and return how many images are in it."""
    with tarfile.open(file, "w", dereference=True) as archive:  # a link would lead elsewhere when it is restored
        sums = {copy.name: _add(archive, copy, copy.name)}
        sums |= _add_small(archive, settings)
        images = 0
        folder = local_folder(settings.images)
        for path in sorted(folder.glob("??/*")) if folder is not None else ():
            name = f"{RESULTS}/{path.parent.name}/{path.name}"
            with suppress(FileNotFoundError):  # it was deleted meanwhile
                sums[name] = _add(archive, path, name)
                images += 1
        manifest = {"version": version("darkroom"), "schema": schema, "created_at": time.time(), "sha256": sums}
        _add_text(archive, MANIFEST, json.dumps(manifest))
    return images


def restore_backup(settings: Settings, file: Path, *, keep_catalog: bool) -> Backup:
    """Put a backup in place of the present files, which are moved aside, and return it. The server may not run. Raises
    StartError."""
    try:
        settings.home.mkdir(parents=True, exist_ok=True)  # the file's own disk may be read-only
        with tarfile.open(file) as archive, tempfile.TemporaryDirectory(dir=settings.home) as scratch:
            archive.extractall(scratch, filter="data")
            manifest = _verified(Path(scratch))
            aside = settings.home / f"before-restore-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
            owner = _owner(settings)
            _put_back(settings, Path(scratch), aside, keep_catalog=keep_catalog)
            problem = _take_over(settings, owner)
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise _no_backup(file, error) from error
    except OSError as error:
        raise StartError(f"{file} can't be restored: {error}") from error
    return replace(_described(settings, file, manifest), storage_problem=problem)


def check_backup(settings: Settings, file: Path) -> Backup:
    """Check a backup without changing anything: every file is as it was written, and the database can be read. Raises
    StartError."""
    try:
        with tarfile.open(file) as archive, tempfile.TemporaryDirectory() as scratch:
            manifest = _manifest(archive)
            members = {member.name: member for member in archive.getmembers()}
            for name, expected in manifest["sha256"].items():
                content = archive.extractfile(members[name]) if name in members else None
                if content is None or hashlib.file_digest(content, "sha256").hexdigest() != expected:  # type: ignore[arg-type]  # reads as a file does
                    raise StartError(f"The backup is damaged: {name} is not as it was written.")
            copy = next(name for name in (SQLITE_NAME, POSTGRESQL_NAME) if name in members)
            archive.extract(members[copy], scratch, filter="data")
            check_kind(settings.database_url, Path(scratch) / copy)
            check_copy(Path(scratch) / copy)
    except (tarfile.TarError, KeyError, ValueError, StopIteration) as error:
        raise _no_backup(file, error) from error
    except OSError as error:
        raise StartError(f"{file} can't be read: {error}") from error
    return _described(settings, file, manifest)


def _described(settings: Settings, file: Path, manifest: dict[str, Any]) -> Backup:
    images = sum(name.startswith(f"{RESULTS}/") for name in manifest["sha256"])
    left_out: tuple[str, ...] = ()
    if images and local_folder(settings.images) is None:
        left_out = (f"its images, since DARKROOM_STORAGE is {settings.images}: unpack {RESULTS}/ and copy them there",)
    return Backup(file, file.stat().st_size, images, str(manifest["schema"]), left_out)


def _no_backup(file: Path, error: Exception) -> StartError:
    reason = str(error).partition("\n")[0].rstrip(":")  # tarfile lists each compression that it has tried
    return StartError(f"{file} is no backup of Darkroom: {reason}.")


def _verified(folder: Path) -> dict[str, Any]:
    """Return the manifest of an unpacked backup. Raises StartError as `_usable` does, and if a file is damaged."""
    manifest = _usable(json.loads((folder / MANIFEST).read_text()))
    for name, expected in manifest["sha256"].items():
        if _sum(folder / name) != expected:
            raise StartError(f"The backup is damaged: {name} is not as it was written.")
    return manifest


def _manifest(archive: tarfile.TarFile) -> dict[str, Any]:
    content = archive.extractfile(MANIFEST)
    if content is None:
        raise KeyError(f"it has no {MANIFEST}")
    return _usable(json.loads(content.read()))


def _usable(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest. Raises StartError if the database's schema is newer than this version's."""
    if is_newer(manifest["schema"]):
        raise StartError(
            f"The backup is of Darkroom {manifest['version']} with the schema {manifest['schema']}, which is newer "
            f"than this version's {newest_schema()}. Install that version, or a later one."
        )
    return manifest


def _put_back(settings: Settings, folder: Path, aside: Path, *, keep_catalog: bool) -> None:
    """Restore the database, the images, the secrets and the catalog. The database comes first: if PostgreSQL does not
    take it, nothing has changed."""
    url = settings.database_url
    copy = next(path for name in (SQLITE_NAME, POSTGRESQL_NAME) if (path := folder / name).exists())
    check_kind(url, copy)
    if url.get_backend_name() == "sqlite" and url.database:
        path = Path(url.database)
        _move_aside(aside, [path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")])
    else:
        _copy_aside(url, aside)
    if copy.name == SQLITE_NAME and url.get_backend_name() != "sqlite":
        fill_from_sqlite(url, copy)
    else:
        restore_database(url, copy, table_names())
    _move_aside(aside, [settings.home / name for name in SECRETS])
    if (images := local_folder(settings.images)) is not None:
        _put_images_back(folder / RESULTS, images, aside / RESULTS)
    for name in SECRETS:
        _move(folder / name, settings.home / name)
    if not keep_catalog:
        _move_aside(aside, [settings.model_configs])
        _move(folder / CATALOG, settings.model_configs)
        if settings.moderation is not None and (folder / POLICY).exists():
            _move_aside(aside, [settings.moderation])
            _move(folder / POLICY, settings.moderation)


def _owner(settings: Settings) -> StorageOwner | None:
    """Return which storage the database owns that a backup replaces."""
    with connect_database(settings.database_url) as database:
        is_current = schema_problem(database.schema_version()) is None
        return StoredFiles(database).owner() if is_current else None


def _take_over(settings: Settings, before: StorageOwner | None) -> str | None:
    """Let the restored database own the storage that the one before it, of this home, owned. Returns why it does not
    own it otherwise; None also for an older schema, which does not know."""
    with connect_database(settings.database_url) as database:
        if schema_problem(database.schema_version()) is not None:
            return None
        marks = StorageMarks(StoredFiles(database), open_storage(settings.images, proxy=settings.proxy), settings)
        with suppress(StorageFailed):
            if marks.is_of(before):
                marks.adopt()
        return marks.find_problem()


def _copy_aside(url: URL, aside: Path) -> None:
    """Copy what a PostgreSQL database has, which no server may use. Raises StartError."""
    with connect_database(url) as database:
        database.require_alone()
        if database.schema_version() is not None:
            aside.mkdir(parents=True, exist_ok=True)
            copy_database(url, aside)


def _put_images_back(source: Path, images: Path, aside: Path) -> None:
    """Put the images of a backup into the storage beside those that are there: no name is given twice. One that is
    there and differs is damaged, and moved aside."""
    for path in source.glob("??/*"):
        target = images / path.relative_to(source)
        if target.is_file() and _sum(target) != _sum(path):
            _move(target, aside / path.relative_to(source))
        if not target.exists():
            _move(path, target)


def _move_aside(aside: Path, paths: list[Path]) -> None:
    for path in paths:
        _move(path, aside / path.name)


def _move(source: Path, target: Path) -> None:
    """Move a file or a folder's content, also to another disk. The folder itself stays: a container can't move a
    volume."""
    if source.is_dir():
        for path in list(source.iterdir()):
            _move(path, target / path.name)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source, target)


def _add_small(archive: tarfile.TarFile, settings: Settings) -> dict[str, str]:
    files = {name: settings.home / name for name in SECRETS}
    if settings.moderation is not None:
        files[POLICY] = settings.moderation
    for path in sorted(settings.model_configs.rglob("*")):
        if path.is_file():
            files[f"{CATALOG}/{path.relative_to(settings.model_configs)}"] = path
    return {name: _add(archive, path, name) for name, path in files.items() if path.exists()}


def _add(archive: tarfile.TarFile, path: Path, name: str) -> str:
    """Add a file; returns its SHA-256. Raises FileNotFoundError."""
    digest = _sum(path)
    archive.add(path, name, recursive=False)
    return digest


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
    archive.addfile(info, io.BytesIO(data))


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
