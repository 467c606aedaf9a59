"""From a body to a typed value, or to the error that OpenAI's API gives for it."""

import codecs
import copy
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from server.errors import BadRequest
from server.schemas.chat_messages import MAX_TEXT
from server.schemas.json_shape import check_shape

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


Body = TypeVar("Body", bound=BaseModel)
Choice = TypeVar("Choice", bound=str)

TYPE_NAMES = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    list: "an array",
    dict: "an object",
}
EXPECTED = {
    "string_type": "a string",
    "string_sub_type": "a string",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "a boolean",
    "bool_parsing": "a boolean",
    "list_type": "an array",
    "finite_number": "a finite number",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "text_or_parts": "a string or an array of parts",
    "string_or_object": "a string or an object",
}
BOUNDS = {
    "greater_than": ("below_min", "Expected a value > {gt}"),
    "greater_than_equal": ("below_min", "Expected a value >= {ge}"),
    "less_than": ("above_max", "Expected a value < {lt}"),
    "less_than_equal": ("above_max", "Expected a value <= {le}"),
}
AMOUNT = r"^[0-9]{1,8}(\.[0-9]{1,4})?$"
PATTERNS = {AMOUNT: "an amount in CNY of at most 8 digits and 4 decimals, such as 0.25"}  # what they are for
MAX_ROUNDS = 4  # of leaving out what says nothing: an outer fault can hide inner ones
NOT_HERE = {
    "none_required": ("'{}' is not supported by this server: leave it out.", "unsupported_parameter"),
    "extra_forbidden": ("Unknown parameter: '{}'.", "unknown_parameter"),
}
TOO_SHORT = {"string_too_short": "string", "too_short": "array"}
TOO_LONG = {"string_too_long": ("string", "characters"), "too_long": ("array", "items")}


class MalformedBody(BadRequest):
    """Not JSON, or JSON that is not an object."""

    default_code: ClassVar[str | None] = None


def parse_json(raw: bytes | bytearray) -> dict[str, Any]:
    """Parse the JSON object in a body. Raises JsonTooComplex, and MalformedBody, also for numbers that can't be
    forwarded as JSON.

    It takes 0.1 s for a string of 60 MB, and holds the interpreter lock, so large bodies must be parsed one at a time.
    """
    check_shape(raw)
    try:
        without_mark = raw[len(codecs.BOM_UTF8) :] if raw.startswith(codecs.BOM_UTF8) else raw
        value = from_json(without_mark, cache_strings="none")
    except ValueError as error:
        raise MalformedBody(f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(value, dict):
        raise MalformedBody("The body of your request must be a JSON object.")
    for part in _iter_scalars(value):
        if isinstance(part, float) and not math.isfinite(part):  # JSON has no NaN, and 1e999 is read as an infinity
            raise MalformedBody(f"We could not parse the JSON body of your request: {part} is no finite number")
    return value


def iter_strings(value: Any) -> Iterator[str]:
    """Yield every string of a JSON value, and its objects' keys."""
    return (part for part in _iter_scalars(value) if isinstance(part, str))


def check_text_length(texts: Iterable[str]) -> None:
    """Check the length of all texts together, before they are tokenized, which takes minutes. Raises BadRequest for
    more text than any model's context holds."""
    if (length := sum(map(len, texts))) > MAX_TEXT:
        message = f"The texts of this request have {length} characters together. Expected at most {MAX_TEXT}."
        raise BadRequest(message, code="string_above_max_length")


def _iter_scalars(value: Any) -> Iterator[Any]:
    """Yield the scalars in a JSON value, and its objects' keys. Not recursive: values may be nested to any depth."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, Mapping):
            for name, inner in reversed(list(part.items())):
                stack += [inner, name]
        elif isinstance(part, list | tuple):
            stack += reversed(part)
        else:
            yield part


def validate(model: type[Body], values: Mapping[str, Any], *, strict: bool) -> Body:
    """Return the typed body. Null means absent, and so does an empty value where none is valid, unless the body refuses
    unknown fields: it is an operator's. Raises BadRequest for the first invalid field.

    `strict` is for JSON, where "2" is not a number; form fields are always strings and are parsed.
    """
    present = {name: value for name, value in values.items() if value is not None}
    emptied: dict[str, ErrorDetails] = {}  # the errors of what was left out, by their paths
    for _ in range(MAX_ROUNDS):
        try:
            return model.model_validate(present, strict=strict)
        except ValidationError as error:
            errors, failed = error.errors(), error
        faults = [each for each in errors if each["type"] != "missing"]
        left = without_absent(present, faults, empty=model.model_config.get("extra") == "ignore")
        if left is None:
            break
        emptied |= {_param(each, present): each for each in reversed(faults)}
        present = left
    first = errors[0]
    if first["type"] == "missing" and (said_nothing := emptied.get(_param(first, present))):
        raise _bad_request(said_nothing, values) from failed
    raise _bad_request(first, present) from failed


def one_of(allowed: Sequence[Choice], value: str, param: str) -> Choice:
    """Return the value, if it is allowed. Raises BadRequest."""
    for choice in allowed:
        if choice == value:
            return choice
    message = f"Invalid value: {_shorten_value(value)}. Supported values are: {', '.join(map(repr, allowed))}."
    raise BadRequest(message, param=param, code="invalid_value")


def ignored_fields(model: type[BaseModel], values: Mapping[str, Any], no_effect: Collection[str] = ()) -> list[str]:
    """List the fields that the model does not have, and those of `no_effect` that were sent."""
    sent = (str(name) for name, value in values.items() if value is not None)
    return sorted(name for name in sent if name not in model.model_fields or name in no_effect)


def _bad_request(error: ErrorDetails, values: Mapping[str, Any]) -> BadRequest:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    param = _param(error, values)
    if kind.startswith("union_tag"):
        param += "." + context["discriminator"].strip("'")
        kind = "missing" if kind == "union_tag_not_found" else kind
    if kind == "missing":
        return BadRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    if kind in EXPECTED:
        got = f"the string {value[:40]!r}" if "parsing" in kind else f"{TYPE_NAMES.get(type(value), 'null')} instead"
        message = f"Invalid type for '{param}': expected {EXPECTED[kind]}, but got {got}."
        return BadRequest(message, param=param, code="invalid_type")
    if kind == "literal_error":
        message = f"Invalid value: {_shorten_value(value)}. Supported values are: {context['expected']}."
        return BadRequest(message, param=param, code="invalid_value")
    if kind == "union_tag_invalid":
        message = f"Invalid value: {_shorten_value(context['tag'])}. Supported values are: {context['expected_tags']}."
        return BadRequest(message, param=param, code="invalid_value")
    if kind == "string_pattern_mismatch" and context["pattern"] in PATTERNS:
        message = f"Invalid '{param}': expected {PATTERNS[context['pattern']]}, but got {_shorten_value(value)}."
        return BadRequest(message, param=param, code="invalid_value")
    if kind in NOT_HERE:
        message, code = NOT_HERE[kind]
        return BadRequest(message.format(param), param=param, code=code)
    if kind in BOUNDS:
        return _out_of_bounds(param, kind, value, context)
    if kind in TOO_LONG:
        what, items = TOO_LONG[kind]
        limit = f"Expected at most {context['max_length']} {items}, but got {len(value)}."
        return BadRequest(f"Invalid '{param}': {what} too long. {limit}", param=param, code=f"{what}_above_max_length")
    if kind in TOO_SHORT:
        code = f"{TOO_SHORT[kind]}_below_min_length"
        return BadRequest(f"Invalid '{param}': it must not be empty.", param=param, code=code)
    return BadRequest(f"Invalid '{param}': {context.get('error', error['msg'])}.", param=param)


def _out_of_bounds(param: str, kind: str, value: object, context: Mapping[str, Any]) -> BadRequest:
    side, wording = BOUNDS[kind]
    number = "decimal" if isinstance(value, float) else "integer"
    problem = f"{number} {side.replace('_', ' ')}imum value"
    message = f"Invalid '{param}': {problem}. {wording.format(**context)}, but got {_shorten_value(value)} instead."
    return BadRequest(message, param=param, code=f"{number}_{side}_value")


def _path(location: tuple[int | str, ...], values: Mapping[str, Any], *, missing: bool) -> str:
    """Write a location as a path: ('messages', 3, 'user', 'content') -> 'messages[3].content'. A name that the body
    does not have is one that pydantic gave to a member of a union, and is left out, unless it is the last one and names
    a missing field. So is one that the body has, if it is the value by which the union tells its members apart."""
    path = ""
    for number, (part, value) in enumerate(steps := list(walk(location, values)), 1):
        if isinstance(part, int):
            path += f"[{part}]"
        elif has_part(value, part) or (missing and number == len(steps) and isinstance(value, Mapping)):
            path += f".{part}" if path else part
    return path


def _param(error: ErrorDetails, values: Mapping[str, Any]) -> str:
    return _path(error["loc"], values, missing=error["type"] == "missing")


def _shorten_value(value: object) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
