"""Which storage a setting names."""

from collections.abc import Callable
from pathlib import Path

from server.backends.local_storage import LocalStorage
from server.backends.object_storage import ObjectStorage
from server.backends.storage import Storage


def open_storage(location: str, is_recorded: Callable[[str], bool] = lambda _: False) -> Storage:
    """Open the storage of a folder or of a URL. `is_recorded` is told names of files that are not there. Raises
    StartError."""
    scheme, separator, path = location.partition("://")
    if separator and scheme != "file":
        return ObjectStorage(location, is_recorded)
    return LocalStorage(Path(path if separator else location), is_recorded)
