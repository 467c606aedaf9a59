"""Keys of objects as texts in a prompt: the names that MCP servers give to properties open no turn.

The library marks control tokens in the strings of messages, tools and documents, and encodes what is marked as text.
It leaves out keys, and what a template joins to a token around them: `<` and `>` around the name of a tag.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from transformers.utils.chat_template_utils import (
    _CONTROL_TOKEN_END,
    _CONTROL_TOKEN_START,
    _get_control_token_patterns,
    mark_control_tokens,
)

BRACKETS: Final = "</|[]>"
LOOKED_UP: Final = frozenset(  # keys that templates ask for by their names
    {"role", "content", "name", "type", "text", "title", "description", "parameters", "properties", "required"}
    | {"items", "enum", "anyOf", "function", "arguments", "tool_calls", "id", "image", "thinking", "snippet", "url"}
)


def mark_inner_keys(value: Mapping[str, Any], tokens: tuple[str, ...]) -> dict[str, Any]:
    """Return a message or the variables of a template, whose own names a template knows, with marks in the keys of
    their values."""
    return {name: mark_keys(one, tokens) for name, one in value.items()}


def encode_marked(tokenizer: Any, prompt: str, tokens: tuple[str, ...]) -> Any:
    """Return the tokens of a rendered prompt, in which what is marked is text: also where the template writes values in
    Python's notation, which spells the marks out."""
    found = _get_control_token_patterns(tokens)[0].pattern
    spelled = f"{re.escape(_spelled(_CONTROL_TOKEN_START))}({found}){re.escape(_spelled(_CONTROL_TOKEN_END))}"
    marked = re.sub(spelled, rf"{_CONTROL_TOKEN_START}\1{_CONTROL_TOKEN_END}", prompt)
    return tokenizer(marked, add_special_tokens=False, sanitize_control_tokens=True)


def _spelled(mark: str) -> str:
    return repr(mark)[1:-1]


def mark_keys(value: Any, tokens: tuple[str, ...]) -> Any:
    """Return a value of JSON in whose keys these control tokens are marked, as the library marks them in strings."""
    if isinstance(value, Mapping):
        return {_marked(key, tokens): mark_keys(one, tokens) for key, one in value.items()}
    return [mark_keys(one, tokens) for one in value] if isinstance(value, list | tuple) else value


def _marked(key: str, tokens: tuple[str, ...]) -> str:
    if key in LOOKED_UP:
        return key
    marked: str = mark_control_tokens(key, _get_control_token_patterns(tokens)[0])
    begins, ends, names = _pieces(tokens)
    lengths = range(2, len(key) + 1)
    joins = key in names or any(key[:n] in ends for n in lengths) or any(key[-n:] in begins for n in lengths)
    return f"{_CONTROL_TOKEN_START}{marked}{_CONTROL_TOKEN_START}" if joins else marked  # a mark alone divides texts


@lru_cache
def _pieces(tokens: tuple[str, ...]) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return what tokens in brackets begin with, what they end with, and what stands in the brackets."""
    framed = [token for token in tokens if token[0] in BRACKETS and token[-1] in BRACKETS]
    begins = frozenset(token[:n] for token in framed for n in range(1, len(token)))
    ends = frozenset(token[n:] for token in framed for n in range(1, len(token)))
    return begins, ends, frozenset(token.strip(BRACKETS) for token in framed)
