"""The one line that a command ends with when something is in its way."""

import traceback

from server.errors import ApiError, DatabaseBusy, StartError, StorageFailed


def error_line(error: BaseException) -> str:
    """Return what a person at a terminal is told: what is wrong and, where it is known, what would work."""
    if isinstance(error, StartError):
        return str(error)
    if isinstance(error, DatabaseBusy):
        return f"The database can't be used: {error.reason}"
    if isinstance(error, StorageFailed):
        return f"The storage can't be used: {error.reason}"
    from server.catalog.images import CatalogError

    if isinstance(error, CatalogError):
        return "; ".join(str(error).splitlines())
    if isinstance(error, ApiError):  # the same functions answer HTTP
        return error.message
    if isinstance(error, OSError) and error.strerror is not None:
        place = "" if error.filename is None else f"{error.filename}: "
        return f"{place}{error.strerror}.{_remedy(error)}"
    if isinstance(error, UnicodeEncodeError):  # from an argument, or the name of a file
        return f"{error.object[error.start : error.end + 20]!a} has letters that are not UTF-8."
    return _describe_unexpected(error)


def _remedy(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return " Run this as the user that runs the server, or set DARKROOM_HOME to a folder of your own."
    return ""


def _describe_unexpected(error: BaseException) -> str:
    """With its place in the code, for whoever reports it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return (
        f"Unexpected {type(error).__name__}: {text}{place}. `python -X dev -m darkroom` in place of `darkroom` shows "
        "the whole way to it."
    )
