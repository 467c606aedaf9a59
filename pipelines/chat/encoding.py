"""Messages become prompt tokens, through the checkpoint's own chat template."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pipelines.chat.failures import InvalidRequest
from pipelines.chat.loading.checkpoint import ChatCheckpoint
from pipelines.chat.preparation import LIMIT_S, TookTooLong
from pipelines.chat.prompts.chat_template import TemplateUse
from pipelines.chat.prompts.conversation_form import shape
from pipelines.chat.prompts.probing import TemplateRefused
from pipelines.chat.prompts.thinking import template_variables
from pipelines.chat.prompts.tool_forms import tool_variables, with_system_tools
from pipelines.chat.syntax.calls import CallFormat
from pipelines.protocol.chat import Message
from pipelines.protocol.images import Failed, RawImage
from pipelines.protocol.pixels import to_image


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: tuple[int, ...]
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)  # of a vision model, beside the tokens
    messages: Sequence[dict[str, Any]] = ()  # of the conversation that are in it


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as `template_messages` makes them, the tools that may be called, and extra template variables."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)


def render_prompt(checkpoint: ChatCheckpoint, conversation: Conversation) -> str:
    """Return the prompt as text, in which control tokens of the messages look like the template's. Raises
    InvalidRequest."""
    use = template_use(checkpoint, conversation)
    with _template_errors():
        return use.render(*template_input(use, conversation, checkpoint.syntax.written_calls))


def encode_prompt(checkpoint: ChatCheckpoint, conversation: Conversation) -> Prompt:
    """Encode the prompt up to the beginning of the answer. Raises InvalidRequest for messages that the template does
    not take."""
    use, sees = template_use(checkpoint, conversation), checkpoint.processor is not None
    with _template_errors(), checkpoint.processing if sees else nullcontext():
        given = template_input(use, conversation, checkpoint.syntax.written_calls)
        encoded = use.encode(*given, tensors=sees)
    if checkpoint.processor is None:
        return Prompt(tuple(encoded["input_ids"]))
    others = {name: value for name, value in encoded.items() if name not in ("input_ids", "attention_mask")}
    return Prompt(tuple(encoded["input_ids"][0].tolist()), others if _has_images(conversation.messages) else {})


@contextmanager
def _template_errors() -> Iterator[None]:
    """Raise what goes wrong in a template as InvalidRequest."""
    try:
        yield
    except TemplateRefused as error:
        message = f"This model's chat template does not take these messages: {error}"
        raise InvalidRequest(Failed("invalid_value", message, param="messages")) from error
    except TookTooLong as error:
        message = (
            f"This model's chat template took longer than {LIMIT_S:g} s to write these messages as a prompt. Please "
            "send fewer or shorter ones."
        )
        raise InvalidRequest(Failed("invalid_value", message, param="messages")) from error


def template_use(checkpoint: ChatCheckpoint, conversation: Conversation) -> TemplateUse:
    """Return the template for this conversation. Raises InvalidRequest for tools that it would not show."""
    tools, documents = bool(conversation.tools), bool(conversation.options.get("documents"))
    use = checkpoint.templates.choose(tools=tools, documents=documents)
    if tools and use.traits.tools is None:
        message = (
            "This model's chat template does not show it any tools, so it can't know them: leave 'tools' out, or use a "
            "model whose template has them."
        )
        raise InvalidRequest(Failed("unsupported", message, param="tools"))
    return use


def unread_thoughts(checkpoint: ChatCheckpoint, conversation: Conversation, prompt: Prompt) -> list[int]:
    """Return the indices of the messages whose thoughts are not in this prompt of the conversation."""
    thoughts = {i: text for i, one in enumerate(conversation.messages) if (text := one.get("reasoning_content"))}
    if not thoughts:
        return []
    use = template_use(checkpoint, conversation)
    shown = replace(conversation, messages=prompt.messages)
    with _template_errors():
        read = use.render(*template_input(use, shown, checkpoint.syntax.written_calls))
    return [index for index, text in thoughts.items() if text.strip() not in read]


def template_input(
    use: TemplateUse, conversation: Conversation, written: CallFormat | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the messages as this template takes them, and its variables. `written` is how the model writes calls."""
    messages, place = shape(conversation.messages, use.traits, written), use.traits.tools
    variables = template_variables(conversation.options, use.traits)
    if place and conversation.tools:
        messages = with_system_tools(messages, place, conversation.tools)
        variables |= tool_variables(place, conversation.tools)
    return messages, variables


def _has_images(messages: Sequence[Mapping[str, Any]]) -> bool:
    parts = (part for message in messages if isinstance(message.get("content"), list) for part in message["content"])
    return any(part.get("type") == "image" for part in parts)


def template_messages(
    checkpoint: ChatCheckpoint, messages: Sequence[Message], images: Sequence[RawImage]
) -> list[dict[str, Any]]:
    """Convert messages for any template: content that is never None, arguments as objects, results with the names of
    their functions, loaded images.

    Raises InvalidRequest for images if the model does not see.
    """
    if images and checkpoint.processor is None:
        raise InvalidRequest(Failed("unsupported", "This model does not see images.", param="messages"))
    names: dict[str, str] = {}
    loaded = map(to_image, images)
    return [_template_message(message, names, loaded) for message in messages]


def _template_part(part: Mapping[str, Any], images: Any) -> dict[str, Any]:
    return {"type": "image", "image": next(images)} if part["type"] == "image_url" else dict(part)


def _template_message(message: Message, names: dict[str, str], images: Any) -> dict[str, Any]:
    """`names` are the functions by call id, of the messages so far."""
    content = message.get("content")
    parts = None if content is None or isinstance(content, str) else [_template_part(part, images) for part in content]
    result = {**message, "content": (content or "") if parts is None else parts}
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
        arguments = json.loads(function.get("arguments") or "{}") or {}
    except ValueError:
        return {**call, "function": function}
    if isinstance(arguments, dict):
        function["arguments"] = arguments
    return {**call, "function": function}
