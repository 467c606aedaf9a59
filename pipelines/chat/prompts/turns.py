"""Who speaks when, in the order that a chat template takes. Pure.

Some templates refuse a second message of instructions, or one that comes later; some refuse two turns of one speaker.
What they say is kept: it joins the message beside it.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Final

from pipelines.chat.prompts.content import Message, join
from pipelines.chat.prompts.template_traits import TemplateTraits

INSTRUCTIONS: Final = frozenset({"system", "developer"})
CONTINUE: Final = "Please continue."  # of a user, where a template wants one and nobody spoke
NOTED: Final = "OK."  # of the assistant, likewise


def shape_turns(messages: Sequence[Message], traits: TemplateTraits) -> list[Message]:
    """Return the messages with instructions and turns in the order that this template takes."""
    named = [_with_known_role(message, traits) for message in messages]
    first = next((i for i, message in enumerate(named) if message["role"] not in INSTRUCTIONS), len(named))
    leading = _merge_leading(named[:first], traits)
    rest = _fold_late(named[first:], traits)
    ends_in_loop = bool(rest) and rest[-1]["role"] != "user"
    if leading and (not traits.system or (ends_in_loop and not traits.system_in_loop)):
        leading, rest = [], _begin_with(leading, rest)
    if leading and not rest and not traits.system_alone:
        leading, rest = leading[:-1], [{**leading[-1], "role": "user"}]
    return [*leading, *_alternate_roles(rest, traits)]


def _with_known_role(message: Message, traits: TemplateTraits) -> Message:
    if message["role"] == "developer" and not traits.developer:
        return {**message, "role": "system"}
    return message


def _merge_leading(leading: list[Message], traits: TemplateTraits) -> list[Message]:
    """Return the instructions that come first, as one message if the template does not take them as they are."""
    pairs = [(one["role"], other["role"]) for one, other in pairwise(leading)]
    if all(pair in traits.leads for pair in pairs):
        return leading
    return [{**leading[0], "role": "system", "content": reduce(join, (each["content"] for each in leading))}]


def _fold_late(messages: list[Message], traits: TemplateTraits) -> list[Message]:
    """Return the messages with later instructions in the message of the user beside them, if they may not stand."""
    folded: list[Message] = []
    waiting: Message | None = None  # instructions, now of a user, that the next message may take in
    for message in messages:
        if message["role"] in INSTRUCTIONS and message["role"] not in traits.late:
            said = {"role": "user", "content": message["content"]}
            waiting = _join_messages(waiting, said) if waiting else said
            continue
        if waiting and message["role"] == "user":
            folded.append(_join_messages(waiting, message))
        else:
            folded = [*_with_waiting(folded, waiting), message]
        waiting = None
    return _with_waiting(folded, waiting)


def _with_waiting(before: list[Message], waiting: Message | None) -> list[Message]:
    """Return the messages with instructions that no message behind takes in: in the user's last, or by themselves."""
    if not waiting:
        return before
    if before and before[-1]["role"] == "user":
        return [*before[:-1], _join_messages(before[-1], waiting)]
    return [*before, waiting]


def _begin_with(instructions: list[Message], rest: list[Message]) -> list[Message]:
    """Return the messages with the instructions at the beginning of the first one of the user."""
    said = reduce(join, (each["content"] for each in instructions))
    at = next((i for i, message in enumerate(rest) if message["role"] == "user"), None)
    if at is None:
        return [{"role": "user", "content": said}, *rest]
    return [*rest[:at], {**rest[at], "content": join(said, rest[at]["content"])}, *rest[at + 1 :]]


def _alternate_roles(messages: list[Message], traits: TemplateTraits) -> list[Message]:
    """Return the messages, merged or with a word between them where the template wants the other to speak."""
    runs = {"user": traits.user_runs, "assistant": traits.assistant_runs}
    turns: list[Message] = []
    if messages and messages[0]["role"] == "assistant" and not traits.assistant_first:
        turns.append({"role": "user", "content": CONTINUE})
    for message in messages:
        before, role = (turns[-1]["role"] if turns else ""), message["role"]
        if before == role and not runs.get(role, True):
            turns[-1] = _join_messages(turns[-1], message)
        elif (before, role) == ("tool", "user") and not traits.user_after_tool:
            turns += [{"role": "assistant", "content": NOTED}, message]
        else:
            turns.append(message)
    return turns


def _join_messages(first: Message, second: Message) -> Message:
    """Return one message of both, with the calls and thoughts of both."""
    joined = {**first, **second, "content": join(first["content"], second["content"])}
    if calls := [*first.get("tool_calls", ()), *second.get("tool_calls", ())]:
        joined["tool_calls"] = calls
    if thoughts := join(first.get("reasoning_content", ""), second.get("reasoning_content", "")):
        joined["reasoning_content"] = thoughts
    return joined
