"""Finished images in an object store: S3 and stores that speak its protocol, Google Cloud Storage, Azure Blob Storage.
And which storage a setting names.

Credentials and endpoints are read from the environment by the names of each store's own tools (AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, ...), or from the machine's role.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import structlog

from pipelines.protocol.machine import extra_command
from server.backends.proxies import store_options
from server.backends.storage import MARK, MOST_OF_MARK, NAME, TRASH, LocalStorage, Storage
from server.errors import StartError, StorageFailed

log = structlog.stdlib.get_logger("darkroom.storage")

SCHEMES = ("s3", "gs", "az")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
ATTEMPTS = 3
RETRY_FOR = timedelta(seconds=15)
TIMEOUT = "30s"
PAGE = 1000  # names in one answer of a store


class ObjectStorage(Storage):
    """A bucket, or the objects with a prefix in one: `s3://bucket/prefix`."""

    def __init__(self, url: str, is_recorded: Callable[[str], bool], proxy: str | None = None) -> None:
        """Open the store of a URL. Raises StartError for a URL that names no store, and where obstore is not
        installed."""
        super().__init__(is_recorded)
        if url.partition("://")[0] not in SCHEMES:
            raise StartError(f"DARKROOM_STORAGE is {url}: it may be a folder, or begin with {', '.join(SCHEMES)}.")
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as error:
            message = f"DARKROOM_STORAGE is {url}: object stores need more packages: {extra_command('storage')}"
            raise StartError(message) from error
        self._obstore = obstore
        self._error = BaseError
        endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), None)
        # an endpoint without TLS is the operator's own choice
        client: Any = {
            "timeout": TIMEOUT,
            "connect_timeout": "5s",
            "allow_http": True,
            **store_options(endpoint, proxy),
        }
        try:
            self._store = from_url(
                url, client_options=client, retry_config={"max_retries": ATTEMPTS - 1, "retry_timeout": RETRY_FOR}
            )
        except (BaseError, ValueError) as error:
            raise StartError(f"DARKROOM_STORAGE is {url}, which can't be used: {error}") from error

    def write(self, name: str, data: bytes) -> None:
        """Store a file. When this returns, it survives a crash."""
        kind = name.rpartition(".")[2]
        with self._translated():
            self._obstore.put(self._store, _key(name), data, attributes={"Content-Type": f"image/{kind}"})

    def read(self, name: str) -> bytes:
        """Read a stored file. Raises as `require` does."""
        with self._found(name):
            return bytes(self._obstore.get(self._store, _key(name)).bytes())

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Read a part of a file, from byte `start` to before `end`. Raises as `require` does."""
        with self._found(name):
            return bytes(self._obstore.get_range(self._store, _key(name), start=start, end=end))

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        if not NAME.fullmatch(name):
            return False
        try:
            with self._translated():
                self._obstore.head(self._store, _key(name))
        except FileNotFoundError:
            return False
        return True

    def names(self, *, trashed: bool = False) -> Iterator[list[str]]:
        """Yield the names of all files, or of those in the trash, a page at a time."""
        with self._translated():
            for page in self._obstore.list(self._store, f"{TRASH}/" if trashed else None, chunk_size=PAGE):
                names = [item["path"].rpartition("/")[2] for item in page]
                keys = {item["path"] for item in page}
                yield [name for name in names if NAME.fullmatch(name) and _key(name, trashed=trashed) in keys]

    def delete(self, names: Collection[str], *, trashed: bool = False) -> None:
        """Delete these files, or those in the trash, as far as they are there."""
        self._delete([_key(name, trashed=trashed) for name in names])

    def trash(self, names: Collection[str]) -> None:
        """Move these files to the trash, as far as they are there."""
        self._delete(self._copied([(_key(name), _key(name, trashed=True)) for name in names]))

    def put_back(self, names: Collection[str]) -> None:
        """Move these files back from the trash, as far as they are there. A store that deletes nothing keeps their
        copies in the trash, which is logged."""
        copied = self._copied([(_key(name, trashed=True), _key(name)) for name in names])
        with suppress(StorageFailed):
            self._delete(copied)

    def read_mark(self) -> bytes | None:
        """Read what says whose the storage is; None if nothing does."""
        try:
            with self._translated():
                size = min(self._obstore.head(self._store, MARK)["size"], MOST_OF_MARK)
                return bytes(self._obstore.get_range(self._store, MARK, start=0, end=size)) if size else b""
        except FileNotFoundError:
            return None

    def write_mark(self, mark: bytes) -> None:
        """Write what says whose the storage is, in place of what said it."""
        with self._translated():
            self._obstore.put(self._store, MARK, mark)

    def _copied(self, keys: Sequence[tuple[str, str]]) -> list[str]:
        """Copy objects, as far as they are there, and return the keys of those that were."""
        copied = []
        for source, target in keys:
            with suppress(FileNotFoundError), self._translated():
                self._obstore.copy(self._store, source, target)
                copied.append(source)
        return copied

    def _delete(self, keys: Sequence[str]) -> None:
        if keys:
            with self._translated():
                self._obstore.delete(self._store, keys)

    @contextmanager
    def _found(self, name: str) -> Iterator[None]:
        if not NAME.fullmatch(name):
            raise FileNotFoundError(name)
        try:
            with self._translated():
                yield
        except FileNotFoundError as error:
            raise self.missing_file_error(name) from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise StorageFailed where the store is away or refuses. A file that is not there is FileNotFoundError, as in
        obstore."""
        try:
            yield
        except FileNotFoundError:
            raise
        except self._error as error:
            reason = str(error).partition("\n")[0]
            log.error("the object store fails", reason=reason)  # noqa: TRY400  # its cause is outside
            raise StorageFailed(reason) from error


def _key(name: str, *, trashed: bool = False) -> str:
    return f"{TRASH}/{name[:2]}/{name}" if trashed else f"{name[:2]}/{name}"


def open_storage(
    location: str, is_recorded: Callable[[str], bool] = lambda _: False, proxy: str | None = None
) -> Storage:
    """Open the storage of a folder or of a URL. `is_recorded` is told names of files that are not there. Raises
    StartError."""
    folder = local_folder(location)
    return ObjectStorage(location, is_recorded, proxy) if folder is None else LocalStorage(folder, is_recorded)


def local_folder(location: str) -> Path | None:
    """Return the folder that a location names; None for an object store. A file:// URL may have escaped letters."""
    scheme, separator, path = location.partition("://")
    if not separator:
        return Path(location)
    return Path(unquote(path)) if scheme == "file" else None
