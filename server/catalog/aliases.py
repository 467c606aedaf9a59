"""Other names of models. `*` in one stands for any letters, so that a dated or a later name of a series works. Pure."""

from collections.abc import Iterable
from fnmatch import fnmatchcase


def alias_of(name: str, aliases: Iterable[str]) -> str | None:
    """Return the alias that a name is: the name itself, else the longest pattern that it matches, else None."""
    known = set(aliases)
    if name in known:
        return name
    matching = [alias for alias in known if "*" in alias and fnmatchcase(name, alias)]
    return max(matching, key=lambda alias: (len(alias), alias), default=None)
