"""Calls of earlier turns and their results, side by side, in the form that a chat template takes. Pure.

Clients cut their histories, and users speak before a tool is done: results lose their calls and calls their results.
"""

import hashlib
import json
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pipelines.chat.prompts.content import Message, join, with_text
from pipelines.chat.prompts.template_traits import CallTraits, TemplateTraits
from pipelines.chat.syntax.calls import CallFormat

ALPHANUMERICS: Final = string.ascii_letters + string.digits
NO_RESULT: Final = "(no result)"


def shape_calls(messages: Sequence[Message], traits: TemplateTraits, written: CallFormat | None) -> list[Message]:
    """Return the messages with their calls as this template takes them, or, if it takes none, as text: as the model
    writes them, if that is known."""
    paired = pair_results(messages)
    if traits.calls is None:
        return [_as_text(message, traits, written) for message in paired]
    split = [part for message in _split_calls(paired, traits.calls) for part in _text_before_calls(message, traits)]
    return list(_with_ids(split, traits.calls))


def _as_text(message: Message, traits: TemplateTraits, written: CallFormat | None) -> Message:
    if calls := [_name_and_arguments(call) for call in message.get("tool_calls", ())]:
        rest = {name: value for name, value in message.items() if name != "tool_calls"}
        known = written is not None and all(isinstance(call["arguments"], Mapping) for call in calls)
        if written and known:
            return with_text(rest, written.written((call["name"], call["arguments"]) for call in calls))
        return with_text(rest, "\n".join(json.dumps(call, ensure_ascii=False) for call in calls))
    if message["role"] == "tool" and not traits.tool_role:
        return as_user_message(message)
    return message


def _name_and_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"name": function["name"], "arguments": function.get("arguments", {})}


def _split_calls(messages: Sequence[Message], calls: CallTraits) -> Iterator[Message]:
    """Yield the messages; where a message may have one call alone, each call with its result behind it."""
    waiting: list[Message] = []  # messages with the further calls of the last one
    for message in messages:
        if waiting and message["role"] == "tool":
            earlier = [one for one in waiting if one["tool_calls"][0].get("id") == message.get("tool_call_id")]
            yield from earlier
            waiting = [one for one in waiting if one not in earlier]
            yield message
            continue
        yield from waiting
        waiting = []
        several = message.get("tool_calls") or []
        if calls.several or len(several) < 2:
            yield message
            continue
        yield {**message, "tool_calls": several[:1]}
        waiting = [{"role": "assistant", "content": "", "tool_calls": [one]} for one in several[1:]]
    yield from waiting


def _text_before_calls(message: Message, traits: TemplateTraits) -> Iterable[Message]:
    """Return the message; where text beside calls is not shown, the text as a message before them."""
    if not message.get("tool_calls") or not message["content"] or not traits.calls or traits.calls.text:
        return [message]
    if not traits.assistant_runs:
        return [message]
    return [{"role": "assistant", "content": message["content"]}, {**message, "content": ""}]


def _with_ids(messages: Iterable[Message], form: CallTraits) -> Iterator[Message]:
    ids: dict[str, str] = {}
    count = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            if form.ids == "position":
                count = 0
            shaped = []
            for call in calls:
                own = str(call.get("id", ""))
                ids[own] = _id(form, own, call["function"]["name"], count)
                shaped.append({**call, "id": ids[own], "function": _function(call["function"], form)})
                count += 1
            yield {**message, "tool_calls": shaped}
        elif message["role"] == "tool" and (own := str(message.get("tool_call_id", ""))):
            yield {**message, "tool_call_id": ids.get(own) or _id(form, own, message.get("name", ""), count)}
        else:
            yield message


def _id(form: CallTraits, own: str, name: str, number: int) -> str:
    if form.ids == "own":
        return own
    if form.ids == "short":
        if len(own) == 9 and own.isascii() and own.isalnum():
            return own
        digest = hashlib.sha256(own.encode()).digest()[:9]
        return "".join(ALPHANUMERICS[byte % len(ALPHANUMERICS)] for byte in digest)
    return f"functions.{name}:{number}"


def _function(function: Mapping[str, Any], form: CallTraits) -> dict[str, Any]:
    arguments = function.get("arguments", {})
    if form.arguments == "text" and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif form.arguments == "object" and not isinstance(arguments, Mapping):
        arguments = {"INVALID_JSON": arguments}  # templates go through the items of an object
    return {**function, "arguments": arguments}


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
