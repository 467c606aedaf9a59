"""The keys of a body's inner objects that this server does not know: a client learns what had no effect. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

MAX_KEYS = 20  # that are named: a header has an end
MAX_NAME = 60
TAGS = ("type", "role")
# of this server's answers, or of others: clients send them back
OWN = {"annotations", "logprobs", "signature", "thoughtSignature", "thought_signature"}


def unknown_keys(body: BaseModel, sent: Mapping[str, Any]) -> list[str]:
    """Return the paths of the unknown keys of `sent`, from which `body` was made, below its own fields. Each is named
    where it first stands: clients add the same to every message."""
    found: dict[str, str] = {}  # by the path without numbers
    for general, path in _walk_fields(body, sent, "", ""):
        if len(found) == MAX_KEYS:
            break
        found.setdefault(general, path)
    return list(found.values())


def _walk(value: Any, sent: Any, general: str, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, BaseModel) and isinstance(sent, Mapping):
        if not _is_translated(value, sent):
            known = {alias for name, info in type(value).model_fields.items() for alias in _names(name, info)}
            for name, one in sent.items():
                if name not in known | OWN and one is not None and len(name) <= MAX_NAME:
                    yield f"{general}.{name}", f"{path}.{name}"
            yield from _walk_fields(value, sent, f"{general}.", f"{path}.")
    elif isinstance(value, list) and isinstance(sent, list) and len(value) == len(sent):
        for index, (one, of) in enumerate(zip(value, sent, strict=True)):
            yield from _walk(one, of, f"{general}[]", f"{path}[{index}]")


def _walk_fields(model: BaseModel, sent: Mapping[str, Any], general: str, path: str) -> Iterator[tuple[str, str]]:
    for name, info in type(model).model_fields.items():
        for alias in _names(name, info):
            if alias in sent:
                yield from _walk(getattr(model, name), sent[alias], f"{general}{alias}", f"{path}{alias}")


def _names(name: str, info: FieldInfo) -> set[str]:
    """Return the names by which a field may be sent."""
    choices = info.validation_alias.choices if isinstance(info.validation_alias, AliasChoices) else ()
    return {name, *filter(None, [info.alias]), *(each for each in choices if isinstance(each, str))}


def _is_translated(value: BaseModel, sent: Mapping[str, Any]) -> bool:
    """Return whether the object came in the words of another protocol, or a text stands for it."""
    return any(sent.get(tag) is not None and sent[tag] != getattr(value, tag, None) for tag in TAGS)
