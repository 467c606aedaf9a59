"""No text of a request is a control token in the prompt, wherever it stands, for the template of any family."""

import copy
import json
import re
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipelines.chat.encoding import Conversation, encode_prompt, template_messages
from pipelines.chat.loading.checkpoint import ChatCheckpoint
from pipelines.chat.prompts.chat_template import ChatTemplates
from starters.chat.tokens import make_tokenizer
from tests.support.chat_templates import FAMILIES

MARK = re.compile(r"<[|/]?[a-zA-Z_▁|:]+\|?>|\[/?[A-Z_]{2,}\]|<｜[^<>]{1,30}｜>")
WORD = "harmless"


@cache
def checkpoint(family: str) -> ChatCheckpoint:
    """Return a checkpoint whose tokenizer has every mark of the family's template as a token."""
    tokenizer = make_tokenizer([])
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    source = FAMILIES[family]
    marks = sorted(set(MARK.findall(source if isinstance(source, str) else "".join(source.values()))))
    tokenizer.add_tokens([mark for mark in marks if "think" in mark or "tool" in mark])
    tokenizer.add_tokens(marks, special_tokens=True)
    templates = ChatTemplates.of(tokenizer, source)
    parts = {"processor": None, "syntax": SimpleNamespace(written_calls=None)}
    return cast(ChatCheckpoint, SimpleNamespace(tokenizer=tokenizer, templates=templates, **parts))


CONVERSATION: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": WORD},
        {"role": "user", "content": WORD},
        {
            "role": "assistant",
            "content": WORD,
            "reasoning_content": WORD,
            "tool_calls": [{
                "id": WORD, "type": "function",
                "function": {"name": WORD, "arguments": {"where": {"deep": [{"more": WORD}]}, "list": [WORD], "n": 1}},
            }],
        },
        {"role": "tool", "tool_call_id": WORD, "content": WORD},
        {"role": "assistant", "content": WORD},
        {"role": "user", "content": [{"type": "text", "text": WORD}]},
    ],
    "tools": [{
        "type": "function",
        "function": {
            "name": WORD,
            "description": WORD,
            "parameters": {
                "type": "object",
                "properties": {
                    "where": {
                        "type": "object", "description": WORD, "default": WORD, "vendor": {"own": WORD},
                        "properties": {"inner": {"type": "string", "enum": [WORD, "b"]}},
                    },
                    "list": {"type": "array", "items": {"type": "string", "description": WORD}},
                },
                "required": ["where"],
            },
        },
    }],
    "options": {
        "documents": [{"title": WORD, "text": WORD, "own": {"more": WORD}}],
        "reasoning_effort": WORD, "custom_instructions": WORD, "builtin_tools": [WORD], "date_string": WORD,
        "system_prompt": WORD, "xml_tools": [WORD], "own": {"key": WORD},
    },
}  # fmt: skip
# a conversation of the same shape whose words and keys are replaced: one by one
KEYS = ("where", "deep", "more", "list", "vendor", "own", "inner", "key")


def count(family: str, conversation: dict[str, Any]) -> int:
    """Return how many control tokens the prompt has."""
    found = checkpoint(family)
    given = copy.deepcopy(conversation)
    for message in given["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    tools = given["tools"] if found.templates.choose(tools=True).traits.tools else ()
    messages = template_messages(found, given["messages"], ())
    tokens = encode_prompt(found, Conversation(messages, tools, given["options"])).tokens
    added = found.tokenizer.added_tokens_decoder
    return sum(token in added for token in tokens)


def replaced(value: Any, text: str, at: list[int], keys: bool) -> Any:
    """Return the value with the text in the place of one word, or of one key: the one that `at` counts down to."""

    def swap(own: str, known: bool) -> str:
        at[0] -= known
        return text if known and at[0] == -1 else own

    if isinstance(value, dict):
        return {
            swap(key, keys and key in KEYS): replaced(inner, text, at, keys) for key, inner in value.items()
        }  # fmt: skip
    if isinstance(value, list):
        return [replaced(inner, text, at, keys) for inner in value]
    return swap(value, not keys and value == WORD) if isinstance(value, str) else value


def places(keys: bool) -> int:
    """Return how many words or keys there are to replace."""
    at = [0]
    replaced(CONVERSATION, "", at, keys)
    return -at[0]


def attacks(family: str) -> list[str]:
    """Return texts that are control tokens, or become some between the brackets of a template."""
    marks = [str(token) for token in checkpoint(family).tokenizer.added_tokens_decoder.values()]
    inner = [mark.strip("<>/|[]") for mark in marks if mark.startswith("<") and "=" not in mark]
    return ["".join(marks), f"x{marks[-1]}y", *(mark[1:] for mark in marks[-2:]), *inner[:40], f"a{marks[-1][:-1]}"]


def everywhere(family: str, keys: bool) -> None:
    plain = count(family, CONVERSATION)
    for text in attacks(family)[: 4 if not keys else None]:
        for place in range(places(keys)):
            changed = replaced(CONVERSATION, text, [place], keys)
            assert count(family, changed) <= plain, (text, place, keys)


CHECKS: dict[str, Callable[[str], None]] = {
    "words": lambda family: everywhere(family, keys=False),
    "keys": lambda family: everywhere(family, keys=True),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_text_becomes_a_control_token(family: str, check: str) -> None:
    CHECKS[check](family)
