"""The turns of a chat in an order that the templates of other servers take, where they refuse it as it was sent. Pure.

Many templates know no role `developer`, and refuse a second system message, one that comes later, or two turns of the
user. Agents send all of these. A local model's template is asked before; another server says so by its refusal.
"""

import re
from collections.abc import AsyncIterator, Mapping
from itertools import takewhile
from typing import Any

from server.backends.upstream import UpstreamResponse
from server.conversation.blocks import as_list

Json = dict[str, Any]
INSTRUCTIONS = frozenset({"system", "developer"})
STATUSES = frozenset({400, 422, 500})  # of servers whose template, or whose schema of messages, refuses a role
ABOUT_ROLES = re.compile(r"(?i)\broles?\b|system message|\bdeveloper\b")


def with_plain_turns(values: Json, answer: UpstreamResponse | AsyncIterator[Json]) -> Json | None:
    """Return the body with its instructions as one system message at the beginning, and later ones as the user's, where
    the answer refuses their roles or places; None if it does not, or if nothing would change."""
    if not isinstance(answer, UpstreamResponse) or answer.error is None or answer.status not in STATUSES:
        return None
    messages = values.get("messages")
    if not ABOUT_ROLES.search(answer.error.message) or not isinstance(messages, list):
        return None
    if not all(isinstance(each, Mapping) for each in messages):
        return None
    plain = _plain(messages)
    return None if plain == messages else {**values, "messages": plain}


def _plain(messages: list[Json]) -> list[Json]:
    leading = list(takewhile(lambda each: each.get("role") in INSTRUCTIONS, messages))
    turns = [{**each, "role": "system"} for each in leading]
    turns += [
        {**each, "role": "user"} if each.get("role") in INSTRUCTIONS else each for each in messages[len(leading) :]
    ]
    joined = list[Json]()
    for turn in turns:
        if joined and turn.get("role") == joined[-1].get("role") and turn.get("role") in {"system", "user"}:
            joined[-1] = {**joined[-1], "content": _join(joined[-1].get("content"), turn.get("content"))}
        else:
            joined.append(turn)
    return joined


def _join(first: object, second: object) -> object:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*as_list(first), *as_list(second)]
