"""Errors of one API in the words of another, whose requests become the former's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from server.errors import ApiError


def field_name(name: str, names: Mapping[str, str]) -> str:
    """Return the caller's own name of a field. `names` has the fields of the inner API and the fields that they were
    made of; a field that it lacks keeps its name and its path."""
    return names.get(name.partition("[")[0].partition(".")[0], name)


def rename_field(error: ApiError, names: Mapping[str, str]) -> None:
    """Replace the field that the error names by the caller's own name of it, in place."""
    error.param = field_name(error.param, names) if error.param else error.param


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Rename the fields of errors that are raised while this is entered, as `rename_field` does."""
    try:
        yield
    except ApiError as error:
        rename_field(error, names)
        raise
