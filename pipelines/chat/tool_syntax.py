"""How a checkpoint writes reasoning and tool calls, derived from its tokenizer and its chat template.

transformers' response parser parses the output, by the tokenizer's own response template where it has one.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

THINK_BEGIN: Final = "<think>"
THINK_END: Final = "</think>"
ParserFields = dict[str, Any]  # as transformers' response templates have them

BARE_OPENING: Final = r"(?:\A|(?<=</think>\s*))\s*(?:<\|python_tag\|>)?(?=\{)"
CONTENT: Final[ParserFields] = {"content": {"content": "text"}}
REASONING: Final[ParserFields] = {
    "reasoning_content": {"open_pattern": r"\s*<think>\s*", "close_pattern": r"\s*</think>\s*", "content": "text"}
}


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """The delimiters around a call, which itself is {"name": ..., `arguments`: ...}."""

    opening: str
    closing: str
    space: str  # between the delimiters and the call
    arguments: str  # the name of that key
    repeats: bool  # several calls in one answer

    def parser_fields(self) -> ParserFields:
        """Return the calls' fields for the response parser. Without delimiters, an answer that begins with a brace is a
        call."""
        call = {"repeats": True, "content": "text"}
        if self.opening:
            return {"tool_calls": {"open_pattern": rf"\s*{self.opening}", "close": self.closing, **call}}
        return {"tool_calls": {"open_pattern": BARE_OPENING, **call}}


HERMES: Final = ToolCallFormat("<tool_call>", "</tool_call>", "\n", "arguments", repeats=True)  # and Qwen
BARE: Final = ToolCallFormat(
    "", "", "", "parameters", repeats=False
)  # Llama 3's JSON; any model can be constrained to it


@dataclass(frozen=True, slots=True)
class OutputSyntax:
    """Reasoning and tool-call syntax of one checkpoint."""

    fields: ParserFields  # for unconstrained output
    anchor: dict[str, Any]  # where in a prompt the output begins; empty when only an open <think> matters
    call_format: ToolCallFormat | None  # None: the response parser knows it, but there is no grammar for it

    @classmethod
    def of(cls, tokenizer: Any, chat_template: str) -> Self:
        """Derive the syntax from the tokenizer's own response template, else from the content of the chat template."""
        if own := getattr(tokenizer, "response_template", None):
            fields = {name: _as_text(field) for name, field in own["fields"].items()}
            anchor = {key: own[key] for key in ("start_anchor", "start_anchor_pattern") if key in own}
            return cls(fields, anchor, HERMES if _is_hermes(own, chat_template) else None)
        call_format = HERMES if HERMES.opening in chat_template else BARE
        reasoning = REASONING if THINK_END in chat_template else {}
        return cls({**reasoning, **call_format.parser_fields(), **CONTENT}, {}, call_format)

    def parser_fields(self, *, tools: bool, required: bool) -> ParserFields:
        """Return the fields of the response parser: with tool calls if there are `tools`; with calls in the
        checkpoint's own format or as bare JSON if a call is `required`."""
        reasoning = {name: field for name, field in self.fields.items() if name != "tool_calls"}
        if required:
            return {**reasoning, **(self.call_format or BARE).parser_fields()}
        return self.fields if tools else reasoning

    @property
    def has_reasoning(self) -> bool:
        """Return whether reasoning can precede the answer."""
        return any(name not in ("tool_calls", "content") for name in self.fields)


def _is_hermes(response_template: dict[str, Any], chat_template: str) -> bool:
    field = response_template["fields"].get("tool_calls", {})
    opening = str(field.get("open", field.get("open_pattern", "")))
    return HERMES.opening in chat_template and opening.endswith(HERMES.opening) and field.get("content") == "json"


def _as_text(field: ParserFields) -> ParserFields:
    """Return a field with JSON calls as text, for `ToolCallParser`, which parses them as they come; the library waits
    for their end and fails on a truncated one."""
    if field.get("content") != "json" or field.get("transform") != {"type": "function", "function": "{content}"}:
        return field
    return {**{key: value for key, value in field.items() if key != "transform"}, "content": "text"}
