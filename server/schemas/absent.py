"""Values that say nothing: null anywhere, and what is empty where nothing empty is valid. Both count as absent.

Serialisers of Go, Java and C# write a null for each field that is not set, and no-code tools an empty string. Those of
Lua and R, and programs with sliders, write 20.0 for 20. Pure.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic_core import ErrorDetails

TAGS = ("type", "role")  # the fields by which unions tell their members apart
Keys = tuple[int | str, ...]


def without_absent(values: Mapping[str, Any], errors: Iterable[ErrorDetails], *, empty: bool) -> dict[str, Any] | None:
    """Return a copy of the values without those that say nothing and are the cause of an error, and with whole decimals
    as the integers that were expected; None if no error has such a cause. With `empty`, an empty string, list or object
    says nothing, too."""
    reached = {_keys_present(error["loc"], values): error["type"] for error in errors}
    absent = [keys for keys in reached if keys and _is_absent(values, keys, empty=empty)]
    whole = [keys for keys, kind in reached.items() if kind == "int_type" and _is_whole(_value_at(values, keys))]
    if not absent and not whole:
        return None
    left = copy.deepcopy(dict(values))
    for keys in whole:
        _value_at(left, keys[:-1])[keys[-1]] = int(_value_at(values, keys))
    for keys in sorted(absent, key=lambda keys: [(isinstance(key, int), key) for key in keys], reverse=True):
        del _value_at(left, keys[:-1])[keys[-1]]  # a list's last item first: positions before it stay
    return left


def walk(location: Keys, values: Mapping[str, Any]) -> Iterator[tuple[int | str, Any]]:
    """Yield each part of an error's location with the value that contains it, None where the values have nothing there.
    Parts that only name a member of a union, by one of its TAGS, are left out."""
    value: Any = values
    tagged = False  # the member of the union that the value is has been named
    for position, part in enumerate(location, 1):
        if not tagged and position < len(location) and _is_tag(part, value):
            tagged = True
            continue
        tagged = False
        yield part, value
        if has_part(value, part):
            value = value[part]
        elif isinstance(part, int):
            value = None


def _is_tag(part: int | str, value: Any) -> bool:
    return isinstance(value, Mapping) and part in {value.get(name) for name in TAGS if isinstance(value.get(name), str)}


def _keys_present(location: Keys, values: Mapping[str, Any]) -> Keys:
    """Return the keys of a location that the values have: others are names that pydantic gave to a union's members."""
    return tuple(part for part, value in walk(location, values) if has_part(value, part))


def has_part(value: Any, part: int | str) -> bool:
    """Return whether a list or an object has an item or a key."""
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, Mapping) and part in value


def _is_absent(values: Mapping[str, Any], keys: Keys, *, empty: bool) -> bool:
    value = _value_at(values, keys)
    if value is None:
        return True
    return empty and value in ("", [], {}) and not isinstance(keys[-1], int)  # in a list it is an item, if a wrong one


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _value_at(values: Any, keys: Keys) -> Any:
    for key in keys:
        values = values[key]
    return values
