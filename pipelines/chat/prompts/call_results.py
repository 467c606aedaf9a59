"""Calls of earlier turns and their results side by side, as chat templates want them. Pure.

Clients cut their histories, and users speak before a tool is done: results lose their calls and calls their results.
"""

from collections.abc import Sequence
from typing import Final

from pipelines.chat.prompts.content import Message, join

NO_RESULT: Final = "(no result)"


def pair_results(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the results of each message's calls directly behind it, in the order of its calls: most
    templates show no ids. A call without a result gets one that says that there is none; a result without a call
    becomes a message of the user."""
    results = _results(messages)
    owned = {at for listed in results.values() for at in listed}
    paired: list[Message] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            paired += [] if index in owned else [as_user_message(message)]
            continue
        paired.append(message)
        calls = message.get("tool_calls") or ()
        found = [results.get((index, place), []) for place in range(len(calls))]
        goes_on = len(messages) > index + 1 + sum(map(len, found))
        for call, listed in zip(calls, found, strict=True):
            call_id = str(call.get("id", ""))
            paired += [{**messages[at], "tool_call_id": call_id} for at in listed]
            paired += [_no_result(call_id, call["function"]["name"])] if goes_on and not listed else []
    return paired


def as_user_message(message: Message) -> Message:
    """Return a tool's result as a message of the user."""
    name = message.get("name")
    head = f"Result of {name}:\n" if name else "Result of the tool:\n"
    return {"role": "user", "content": join(head, message["content"], separator="")}


def _results(messages: Sequence[Message]) -> dict[tuple[int, int], list[int]]:
    """Return the indices of the results by the index of the message that calls, and the place of the call in it."""
    results: dict[tuple[int, int], list[int]] = {}
    known: dict[str, list[tuple[int, int]]] = {}  # calls by id, the newest message's first
    latest: list[tuple[int, int]] = []  # the calls of the last message that has some
    for index, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            latest = [(index, place) for place in range(len(calls))]
            for call, place in reversed([*zip(calls, latest, strict=True)]):
                known.setdefault(str(call.get("id", "")), []).insert(0, place)
        elif message["role"] == "tool":
            named = known.get(str(message.get("tool_call_id", "")))
            waiting = [place for place in named or latest if place not in results]  # `latest`: its id is made up
            if owner := next(iter(waiting or named or ()), None):
                results.setdefault(owner, []).append(index)
    return results


def _no_result(call_id: str, name: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": NO_RESULT}
