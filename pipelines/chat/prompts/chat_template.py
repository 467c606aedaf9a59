"""A checkpoint's chat templates: which one is for a request, and what each renders.

A tokenizer has one template, or several by name: `default`, `tool_use`, `rag`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import (
    _get_control_token_patterns,
    _get_template_variables,
    mark_control_tokens,
)

from pipelines.chat.prompts.control_tokens import encode_marked, mark_inner_keys
from pipelines.chat.prompts.probing import TemplateRefused
from pipelines.chat.prompts.template_probes import find_traits
from pipelines.chat.prompts.template_traits import TemplateTraits

# A variable that is not there is assigned: `tools is defined` is false then, which None is not
UNSET_TOOLS: Final = "{%- set tools = tools or darkroom_has_no_such_variable -%}"
OWN: Final = frozenset({"messages", "add_generation_prompt", "continue_final_message"})  # variables that are no options
REFUSALS: Final = (  # what templates raise, on purpose or not
    TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TemplateUse:
    """One template, as it is used with tools or without them."""

    renderer: Any  # a tokenizer, or a vision model's processor
    source: str
    traits: TemplateTraits = field(default_factory=TemplateTraits)

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return the prompt as text, up to where the answer begins. Raises TemplateRefused."""
        text: str = self._apply(messages, variables, tokenize=False)
        return text

    def encode(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], *, tensors: bool) -> Any:
        """Return the prompt as tokens, in which control tokens of the messages are text. Raises TemplateRefused."""
        tokens = getattr(self.renderer, "tokenizer", self.renderer)._get_control_tokens(self.source)
        marked = [mark_inner_keys(message, tokens) for message in messages], mark_inner_keys(variables, tokens)
        if tensors:  # a vision model's processor marks strings itself
            how: dict[str, Any] = {"return_tensors": "pt", "return_dict": True, "sanitize_control_tokens": True}
            return self._apply(*marked, tokenize=True, **how)
        strings = mark_control_tokens(marked, _get_control_token_patterns(tokens)[0])
        return encode_marked(self.renderer, self._apply(*strings, tokenize=False), tokens)

    def _apply(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], **how: Any) -> Any:
        source = UNSET_TOOLS + self.source if self.traits.unset_tools else self.source
        known = {name: value for name, value in variables.items() if name in self.traits.variables}  # not the library's
        try:
            return self.renderer.apply_chat_template(
                list(messages), chat_template=source, add_generation_prompt=True, **how, **known
            )
        except REFUSALS as error:
            raise TemplateRefused(str(error)) from error


@dataclass(frozen=True, slots=True, eq=False)
class ChatTemplates:
    """All templates of a checkpoint. Immutable."""

    sources: Mapping[str, str]
    uses: Mapping[tuple[str, bool], TemplateUse]  # by the template's name, and whether there are tools

    @classmethod
    def of(cls, renderer: Any, template: str | Mapping[str, str]) -> "ChatTemplates":
        """Render probes with every template of a tokenizer or processor, and return them with what was found."""
        sources = {"default": template} if isinstance(template, str) else dict(template)
        uses = {}
        for name, source in sources.items():
            for with_tools in (False, True):
                traits = _probe(renderer, source, with_tools=with_tools)
                uses[name, with_tools] = TemplateUse(renderer, source, traits)
        return cls(sources, uses)

    @property
    def text(self) -> str:
        """Return the source of all templates."""
        return "\n".join(self.sources.values())

    @property
    def shown_call(self) -> str:
        """Return how the template writes a call of an earlier turn; an empty text if it shows none."""
        calls = self.choose(tools=True).traits.calls
        return calls.shown if calls else ""

    def choose(self, *, tools: bool, documents: bool = False) -> TemplateUse:
        """Return the template for a request with tools or documents."""
        wanted = ("tool_use",) if tools else ("rag",) if documents else ()
        names = [name for name in (*wanted, "default", *self.sources) if name in self.sources]
        return self.uses[names[0], tools]

    @property
    def notes(self) -> list[str]:
        """Return notes on the templates for the operator."""
        notes = []
        if problem := self.choose(tools=False).traits.problem:
            notes.append(f"its chat template renders no message: {problem}")
        elif not self.choose(tools=True).traits.tools:
            notes.append("its chat template shows no tools to the model, so requests with `tools` are refused")
        return notes


def _probe(renderer: Any, source: str, *, with_tools: bool) -> TemplateTraits:
    def render(traits: TemplateTraits, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        return TemplateUse(renderer, source, traits).render(messages, variables)

    is_processor = hasattr(renderer, "tokenizer")
    variables = frozenset(_get_template_variables(source)) - OWN
    return find_traits(render, variables, with_tools=with_tools, prefer_parts=is_processor)
