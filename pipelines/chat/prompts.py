"""Messages become prompt tokens, through the checkpoint's own chat template."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jinja2 import TemplateError

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.failures import InvalidRequest
from pipelines.protocol.chat import Message
from pipelines.protocol.images import Failed, RawImage
from pipelines.protocol.pixels import to_image


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: tuple[int, ...]
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)  # of a vision model, beside the tokens
    dropped_messages: int = 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as templates expect them, the tools that may be called, and extra template variables."""

    messages: list[dict[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)


def fit_prompt(checkpoint: ChatCheckpoint, conversation: Conversation, *, truncate: bool) -> Prompt:
    """Return a prompt that leaves room for an answer. `truncate` drops the oldest turns for it. Raises
    InvalidRequest."""
    full = encode_prompt(checkpoint, conversation)
    if len(full.tokens) < checkpoint.context:
        return full
    instructions, turns = _turns(conversation.messages)
    best: Prompt | None = None
    low, high = 1, len(turns) if truncate else 0  # binary search of the turns to drop; the last one stays
    while low < high:
        drop = (low + high) // 2
        messages = [*instructions, *(message for turn in turns[drop:] for message in turn)]
        shorter = encode_prompt(checkpoint, Conversation(messages, conversation.tools, conversation.options))
        if len(shorter.tokens) < checkpoint.context:
            best, high = Prompt(shorter.tokens, shorter.inputs, len(conversation.messages) - len(messages)), drop
        else:
            low = drop + 1
    if best is None:
        raise InvalidRequest(_overflow(len(full.tokens), checkpoint))
    return best


def encode_prompt(checkpoint: ChatCheckpoint, conversation: Conversation) -> Prompt:
    """Encode the prompt up to the beginning of the answer. Raises InvalidRequest for messages that the template does
    not take."""
    try:
        encoded = (checkpoint.processor or checkpoint.tokenizer).apply_chat_template(
            conversation.messages,
            tools=list(conversation.tools) or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            sanitize_control_tokens=True,  # control tokens in what people write are text
            **({"return_tensors": "pt"} if checkpoint.processor else {}),
            **conversation.options,
        )
    except (TemplateError, TypeError, ValueError) as error:  # what templates raise, on purpose or not
        message = f"This model's chat template does not take these messages: {error}"
        raise InvalidRequest(Failed("invalid_value", message, param="messages")) from error
    if checkpoint.processor is None:
        return Prompt(tuple(encoded["input_ids"]))
    if not _has_images(conversation.messages):
        return Prompt(tuple(encoded["input_ids"][0].tolist()))
    inputs = {name: value for name, value in encoded.items() if name not in ("input_ids", "attention_mask")}
    return Prompt(tuple(encoded["input_ids"][0].tolist()), inputs)


def _has_images(messages: Sequence[Mapping[str, Any]]) -> bool:
    parts = (part for message in messages if isinstance(message.get("content"), list) for part in message["content"])
    return any(part.get("type") == "image" for part in parts)


def template_messages(
    checkpoint: ChatCheckpoint, messages: Sequence[Message], images: Sequence[RawImage]
) -> list[dict[str, Any]]:
    """Convert messages for the template: text as strings, arguments as objects, roles that the template knows, images
    for a vision model.

    Raises InvalidRequest for images if it is none.
    """
    if images and checkpoint.processor is None:
        raise InvalidRequest(Failed("unsupported", "This model does not see images.", param="messages"))
    names: dict[str, str] = {}
    loaded = map(to_image, images)
    converted_messages = []
    for message in messages:
        converted = _template_message(message, checkpoint.template, names)
        if isinstance(content := converted.get("content"), list | tuple):
            parts = [_template_part(part, loaded) for part in content]
            joined = "".join(part["text"] for part in parts if part["type"] == "text")
            converted["content"] = parts if checkpoint.processor else joined
        elif isinstance(content, str) and checkpoint.processor:
            converted["content"] = [{"type": "text", "text": content}]
        converted_messages.append(converted)
    return converted_messages


def _template_part(part: Mapping[str, Any], images: Any) -> dict[str, Any]:
    return {"type": "image", "image": next(images)} if part["type"] == "image_url" else dict(part)


def _template_message(message: Message, template: str, names: dict[str, str]) -> dict[str, Any]:
    """Convert one message. `names` are the functions by call id, of the messages so far."""
    result = dict(message)
    if result.get("role") == "developer" and "developer" not in template:
        result["role"] = "system"
    if calls := result.get("tool_calls"):
        result["tool_calls"] = [_template_call(call) for call in calls]
        names.update((call["id"], call["function"]["name"]) for call in calls if "id" in call)
    if result.get("role") == "tool" and "name" not in result and (name := names.get(result.get("tool_call_id", ""))):
        result["name"] = name
    return result


def _template_call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object: templates write them as JSON themselves, and would quote a string
    once more."""
    function = dict(call["function"])
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        return {**call, "function": function}
    if isinstance(arguments, dict):
        function["arguments"] = arguments
    return {**call, "function": function}


def _turns(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Split messages into the instructions that come first, and turns: each begins with a user's message."""
    first = next((i for i, message in enumerate(messages) if message["role"] not in ("system", "developer")), 0)
    turns: list[list[dict[str, Any]]] = []
    for message in messages[first:]:
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return list(messages[:first]), turns


def _overflow(tokens: int, checkpoint: ChatCheckpoint) -> Failed:
    context = checkpoint.context
    limited = (
        f" The model could read {checkpoint.most_tokens}; the memory for its KV cache, a setting of the operator's "
        "(DARKROOM_CHAT_CACHE_SHARE), holds fewer."
    )
    message = (
        f"This model's maximum context length is {context} tokens, and your messages take {tokens} of them, "
        f"which leaves no room for an answer. Please send less.{limited if context < checkpoint.most_tokens else ''}"
    )
    return Failed("context_length_exceeded", message, param="messages")
