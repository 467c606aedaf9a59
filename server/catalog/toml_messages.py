"""Messages about wrong values of a TOML file, with the right ones, for the person who edits it by hand."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

Shape = type[BaseModel]
BOUNDS: Mapping[str, str] = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
UNQUOTED = re.compile(r"[^=#]+=\s*(?!true\b|false\b|inf\b|nan\b)[A-Za-z/.~][^\"']*")


def syntax_message(error: Exception, text: str) -> str:
    """Describe the error of a text that is no TOML, with the line itself."""
    found = re.search(r"at line (\d+)", str(error))
    line = text.splitlines()[int(found[1]) - 1].strip()[:100] if found and text else ""
    hint = " (text needs quotes)" if UNQUOTED.fullmatch(line) else ""
    return f"not valid TOML: {error}{f': {line}' if line else ''}{hint}"


def message_of(error: ErrorDetails, shape: Shape) -> str:
    """Describe the error of a value that the shape does not take."""
    if error["type"] == "missing":
        return "missing"
    if error["type"] == "extra_forbidden":
        return f"unknown key; {_right_key(error, shape)}"
    return f"got {_show_value(error['input'])}, expected {_expected_value(error, shape)}"


def _show_value(value: Any) -> str:
    return "a table" if isinstance(value, dict) else repr(value)


def _right_key(error: ErrorDetails, shape: Shape) -> str:
    *path, key = error["loc"]
    table = _table_at(shape, path)
    if table is None:
        return "remove it"
    names = [field.alias or name for name, field in table.model_fields.items()]
    if close := difflib.get_close_matches(str(key), names, 1):
        return f"did you mean {close[0]!r}?"
    if path and key in shape.model_fields:
        return "it belongs to the top of the file, above the first [table]"
    return f"expected one of {', '.join(names)}"


def _expected_value(error: ErrorDetails, shape: Shape) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if bound := next((name for name in BOUNDS if name in context), None):
        return f"{BOUNDS[bound]} {context[bound]}{_in_words(error, shape)}"
    match kind:
        case "literal_error":
            return str(context["expected"])
        case "list_type" if isinstance(value, dict):
            return f"a list of tables: write [[{error['loc'][-1]}]], in two brackets"
        case "list_type":
            return f"a list: {json.dumps([value])}"
        case "string_type":
            return "text in quotes" if isinstance(value, dict | list) else f"text in quotes: {json.dumps(str(value))}"
        case "int_type" | "int_from_float":
            return "a whole number, without quotes"
        case "float_type":
            return "a number, without quotes"
        case "bool_type":
            return "true or false, without quotes"
        case "dict_type" | "model_type":
            table = _table_at(shape, error["loc"])
            return f"a table with {', '.join(table.model_fields)}" if table is not None else "a table"
        case "string_too_short" | "too_short":
            return "text that is not empty" if isinstance(value, str) else "a list that is not empty"
        case "string_pattern_mismatch":
            return _in_words(error, shape).removeprefix(", ") or f"text that matches {context['pattern']}"
    return f"{error['msg'][0].lower()}{error['msg'][1:]}"


def _in_words(error: ErrorDetails, shape: Shape) -> str:
    field = _field_at(shape, error["loc"])
    words = (field.description or _description_in(field.annotation)) if field is not None else None
    return f", {words}" if words else ""


def _description_in(annotation: Any) -> str | None:
    """Return the description of a type inside another, such as that of an optional field; None if there is none."""
    for each in get_args(annotation):
        if (found := each.description if isinstance(each, FieldInfo) else _description_in(each)) is not None:
            return found
    return None


def _field_at(shape: Shape, path: Sequence[str | int]) -> FieldInfo | None:
    """Return the field of the last key of a path, None if there is none."""
    keys = [part for part in path if isinstance(part, str)]
    table = _table_at(shape, keys[:-1])
    return _find_field(table, keys[-1]) if table is not None and keys else None


def _table_at(shape: Shape, path: Sequence[str | int]) -> Shape | None:
    """Return the model of the table at a path of keys and list indices; None where keys are free."""
    table: Shape | None = shape
    for key in path:
        if isinstance(key, str):
            field = _find_field(table, key) if table is not None else None
            table = _model_in(field.annotation) if field is not None else None
    return table


def _find_field(table: Shape, key: str) -> FieldInfo | None:
    fields = table.model_fields
    return fields.get(key) or next((field for field in fields.values() if field.alias == key), None)


def _model_in(annotation: Any) -> Shape | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)
