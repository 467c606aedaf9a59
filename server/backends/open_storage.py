"""Which storage a setting names."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from server.backends.local_storage import LocalStorage
from server.backends.object_storage import ObjectStorage
from server.backends.storage import Storage


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
