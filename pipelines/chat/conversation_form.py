"""A conversation in the form that the template at hand takes: the one place that knows what templates want. Pure."""

from collections.abc import Sequence

from pipelines.chat.call_forms import shape_calls
from pipelines.chat.content import Message, as_parts, as_text
from pipelines.chat.syntax.calls import CallFormat
from pipelines.chat.template_traits import TemplateTraits
from pipelines.chat.turns import shape_turns


def shape(messages: Sequence[Message], traits: TemplateTraits, written: CallFormat | None = None) -> list[Message]:
    """Return the messages as this template takes them. `written` is how the model writes calls.

    Content is a text or parts, never None. Thoughts are in `reasoning_content`, arguments are objects where they are
    valid.
    """
    turns = shape_turns(shape_calls(messages, traits, written), traits)
    return [_with_thoughts(_with_content(message, traits), traits) for message in turns]


def _with_content(message: Message, traits: TemplateTraits) -> Message:
    content = message["content"]
    return {**message, "content": as_parts(content) if traits.parts else as_text(content)}


def _with_thoughts(message: Message, traits: TemplateTraits) -> Message:
    """Return the message with its thoughts where this template has them. One that showed none in a probe may still
    show some, if an option says so: it gets them too."""
    thoughts = message.get("reasoning_content")
    if not thoughts or traits.reasoning in (None, "reasoning_content"):
        return message
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    if traits.reasoning == "part":
        return {**rest, "content": [{"type": "thinking", "thinking": thoughts}, *as_parts(message["content"])]}
    return {**rest, traits.reasoning: thoughts}
