"""Small conversations with marked words in them, and whether a chat template shows what is marked."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pipelines.chat.prompts.content import Message
from pipelines.chat.prompts.template_traits import TemplateTraits
from pipelines.chat.prompts.tool_forms import tool_variables, with_system_tools

MARK: Final = re.compile(r"qz[a-z]+")
UNKNOWN: Final = "qzunknown"  # a role and a level that no template knows
ARGUMENT: Final = {"type": "string", "description": "A city."}
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "qztool",
        "description": "Finds it.",
        "parameters": {"type": "object", "properties": {"qzargument": ARGUMENT}, "required": ["qzargument"]},
    },
}
ARGUMENTS: Final = {
    "qzargument": {"enum": ["a"]},
    "qzother": {"type": "object"},
    "qzlist": {"type": ["string", "null"]},
}
BARE: Final = {"type": "object", "properties": ARGUMENTS}
BARE_TOOLS: Final = (
    {"type": "function", "function": {"name": "qztool", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "qzbare", "parameters": BARE}},
)


class TemplateRefused(Exception):
    """The template does not take this conversation."""


Render = Callable[[TemplateTraits, Sequence[Message], Mapping[str, Any]], str]  # raises TemplateRefused


class Prober:
    """Renders probes with one template. `traits` are what is known so far."""

    def __init__(self, render: Render, traits: TemplateTraits, *, with_tools: bool) -> None:
        self._render = render
        self.traits = traits
        self.tools: tuple[Mapping[str, Any], ...] = (TOOL,) if with_tools else ()

    def set_traits(self, **found: Any) -> None:
        """Set traits that were found, by their names."""
        self.traits = replace(self.traits, **found)

    def text(self, *messages: Message, **variables: Any) -> str:
        """Return the prompt. Raises TemplateRefused."""
        shaped = [self._content(message) for message in messages]
        place = self.traits.tools
        if place and self.tools:
            shaped = with_system_tools(shaped, place, self.tools)
            variables = {**tool_variables(place, self.tools), **variables}
        return self._render(self.traits, shaped, variables)

    def attempt(self, *messages: Message, **variables: Any) -> str | None:
        """Return the prompt; None if the template refuses it."""
        try:
            return self.text(*messages, **variables)
        except TemplateRefused:
            return None

    def shows(self, *messages: Message, **variables: Any) -> bool:
        """Return whether the prompt has all that is marked in the messages."""
        prompt = self.attempt(*messages, **variables)
        marks = MARK.findall(json.dumps([{**message, "role": ""} for message in messages]))
        return prompt is not None and all(mark in prompt for mark in marks)

    def _content(self, message: Message) -> Message:
        content = message["content"]
        if not self.traits.parts or not isinstance(content, str):
            return message
        return {**message, "content": [{"type": "text", "text": content}] if content else []}


def message(role: str, mark: str, **others: Any) -> Message:
    """Return a message of a role."""
    return {"role": role, "content": mark, **others}


system, developer, user, assistant = (partial(message, role) for role in ("system", "developer", "user", "assistant"))
