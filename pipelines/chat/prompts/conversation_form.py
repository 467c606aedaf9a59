"""A conversation in the form that the template at hand takes: the one place that knows what templates want. Pure."""

from collections.abc import Sequence

from pipelines.chat.prompts.call_forms import shape_calls
from pipelines.chat.prompts.content import Message, as_parts, as_text, join
from pipelines.chat.prompts.template_traits import TemplateTraits
from pipelines.chat.prompts.turns import shape_turns
from pipelines.chat.syntax.calls import CallFormat


def shape(messages: Sequence[Message], traits: TemplateTraits, written: CallFormat | None = None) -> list[Message]:
    """Return the messages as this template takes them. `written` is how the model writes calls.

    Content is a text or parts, never None. Thoughts are in `reasoning_content`, arguments are objects where they are
    valid.
    """
    said = [message for message in messages if not _is_empty(message)] or messages
    turns = shape_turns(shape_calls(said, traits, written), traits)
    return [_with_thoughts(_with_content(message, traits), traits) for message in turns]


def _is_empty(message: Message) -> bool:
    """Return whether this is an answer that was cut before its first word: some templates refuse those."""
    says = any(message.get(key) for key in ("content", "tool_calls", "reasoning_content"))
    return message["role"] == "assistant" and not says


def _with_content(message: Message, traits: TemplateTraits) -> Message:
    content = message["content"]
    return {**message, "content": as_parts(content) if traits.parts else as_text(content)}


def _with_thoughts(message: Message, traits: TemplateTraits) -> Message:
    """Return the message with its thoughts where this template has them. One that showed none in a probe may still
    show some, if an option says so: it gets them too."""
    thoughts = message.get("reasoning_content")
    if thoughts and message.get("tool_calls") and traits.calls and not traits.calls.text_and_thoughts:
        thoughts = as_text(join(thoughts, message["content"]))
        message = {**message, "content": [] if traits.parts else "", "reasoning_content": thoughts}
    if not thoughts or traits.reasoning in (None, "reasoning_content"):
        return message
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    if traits.reasoning == "part":
        return {**rest, "content": [{"type": "thinking", "thinking": thoughts}, *as_parts(message["content"])]}
    return {**rest, traits.reasoning: thoughts}
