"""Messages become the tokens of a prompt, through the checkpoint's own chat template."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat_types import Message
from pipelines.types import Failed


class Refused(Exception):
    """The request can't be answered as it stands."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


def fit(
    checkpoint: ChatCheckpoint,
    messages: Sequence[Message],
    tools: Sequence[Any],
    options: Mapping[str, Any],
    *,
    truncate: bool,
) -> tuple[list[int], int]:
    """The prompt's tokens, and how many messages were dropped to make it fit. Raises Refused."""
    tokens = encode(checkpoint, messages, tools, options)
    if len(tokens) < checkpoint.context:
        return tokens, 0
    if not truncate:
        raise Refused(_overflow(len(tokens), checkpoint.context))
    beginning, turns = _turns(messages)
    fewest, most = 1, len(turns)  # turns to drop; with `most` nothing but the beginning would be left
    best: tuple[list[int], int] | None = None
    while fewest < most:
        drop = (fewest + most) // 2
        kept = [*beginning, *(message for turn in turns[drop:] for message in turn)]
        shorter = encode(checkpoint, kept, tools, options)
        if len(shorter) < checkpoint.context:
            best, most = (shorter, len(messages) - len(kept)), drop
        else:
            fewest = drop + 1
    if best is None:
        raise Refused(_overflow(len(tokens), checkpoint.context))
    return best


def encode(
    checkpoint: ChatCheckpoint, messages: Sequence[Message], tools: Sequence[Any], options: Mapping[str, Any]
) -> list[int]:
    """The prompt's tokens, up to where the answer begins. Raises Refused for what the template does not take.

    `options` are variables that some templates know.
    """
    try:
        tokens: list[int] = checkpoint.tokenizer.apply_chat_template(
            template_messages(messages, checkpoint.tokenizer.chat_template),
            tools=list(tools) or None,
            add_generation_prompt=True,
            return_dict=False,
            sanitize_control_tokens=True,  # marks in what people write are text, not marks
            **options,
        )
    except TemplateError as error:
        message = f"This model's chat template does not take these messages: {error}"
        raise Refused(Failed("invalid_value", message, param="messages")) from error
    return tokens


def template_messages(messages: Sequence[Message], template: str) -> list[dict[str, Any]]:
    """Messages as templates expect them: text as strings, arguments as objects, roles that the template knows."""
    names: dict[str, str] = {}
    return [_template_message(message, template, names) for message in messages]


def _template_message(message: Message, template: str, names: dict[str, str]) -> dict[str, Any]:
    """`names` are the functions by call id, as seen so far."""
    told = dict(message)
    if told.get("role") == "developer" and "developer" not in template:
        told["role"] = "system"
    if isinstance(content := told.get("content"), list | tuple):
        told["content"] = "".join(part["text"] for part in content if part.get("type") == "text")
    if calls := told.get("tool_calls"):
        told["tool_calls"] = [_template_call(call) for call in calls]
        names.update((call["id"], call["function"]["name"]) for call in calls if "id" in call)
    if told.get("role") == "tool" and "name" not in told and (name := names.get(told.get("tool_call_id", ""))):
        told["name"] = name
    return told


def _template_call(call: dict[str, Any]) -> dict[str, Any]:
    """Templates write arguments as JSON themselves; a string would be quoted once more."""
    function = dict(call["function"])
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        return {**call, "function": function}
    if isinstance(arguments, dict):
        function["arguments"] = arguments
    return {**call, "function": function}


def _turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """The instructions that come first, and then turns: each begins with what a user says."""
    first = next((i for i, message in enumerate(messages) if message["role"] not in ("system", "developer")), 0)
    turns: list[list[Message]] = []
    for message in messages[first:]:
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return list(messages[:first]), turns


def _overflow(tokens: int, context: int) -> Failed:
    message = (
        f"This model's maximum context length is {context} tokens, and your messages take {tokens} of them, "
        "which leaves no room for an answer. Please send less."
    )
    return Failed("context_length_exceeded", message, param="messages")
