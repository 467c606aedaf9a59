"""Calls of earlier turns and their results side by side, as chat templates want them. Pure.

Clients cut their histories, and users speak before a tool is done: results lose their calls and calls their results.
"""

from collections.abc import Sequence
from typing import Final

from pipelines.chat.content import Message, join

NO_RESULT: Final = "(no result)"


def pair_results(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the results of each message's calls directly behind it. A call without a result gets one
    that says that there is none; a result without a call becomes a message of the user."""
    results, missing = _results(messages)
    owned = {at for listed in results.values() for at, _ in listed}
    paired: list[Message] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            paired += [] if index in owned else [as_user_message(message)]
            continue
        paired.append(message)
        if calls := message.get("tool_calls"):
            paired += [{**messages[at], "tool_call_id": call_id} for at, call_id in results[index]]
            if len(messages) > index + 1 + len(results[index]):
                names = {str(call.get("id", "")): call["function"]["name"] for call in calls}
                paired += [_no_result(call_id, names[call_id]) for call_id in missing[index]]
    return paired


def as_user_message(message: Message) -> Message:
    """Return a tool's result as a message of the user."""
    name = message.get("name")
    head = f"Result of {name}:\n" if name else "Result of the tool:\n"
    return {"role": "user", "content": join(head, message["content"], separator="")}


def _results(messages: Sequence[Message]) -> tuple[dict[int, list[tuple[int, str]]], dict[int, list[str]]]:
    """Return for each message with calls, by its index, the indices of their results with the calls' ids, and the ids
    of the calls without a result."""
    results: dict[int, list[tuple[int, str]]] = {}
    ids: dict[int, list[str]] = {}
    missing: dict[int, list[str]] = {}
    for index, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            ids[index] = [str(call.get("id", "")) for call in calls]
            missing[index], results[index] = list(ids[index]), []
        elif message["role"] == "tool":
            own = str(message.get("tool_call_id", ""))
            owner = next((at for known in (missing, ids) for at in reversed(ids) if own in known[at]), None)
            latest = next(reversed(ids), None)
            if owner is None and latest is not None and missing[latest]:  # of an id that the client made up
                owner, own = latest, missing[latest][0]
            if owner is not None:
                results[owner].append((index, own))
                missing[owner] = _remove_first(missing[owner], own)
    return results, missing


def _remove_first(ids: list[str], one: str) -> list[str]:
    """Return the ids without the first of these."""
    at = ids.index(one) if one in ids else len(ids)
    return ids[:at] + ids[at + 1 :]


def _no_result(call_id: str, name: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": NO_RESULT}
