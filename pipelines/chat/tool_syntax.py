"""How a checkpoint writes reasoning and tool calls, told from its tokenizer and its chat template.

Answers are read by transformers' response parser, with the tokenizer's own response template where it has one.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

THINK_BEGIN: Final = "<think>"
THINK_END: Final = "</think>"
Fields = dict[str, Any]

BARE_OPENING: Final = r"(?:\A|(?<=</think>\s*))\s*(?:<\|python_tag\|>)?(?=\{)"
CONTENT: Final[Fields] = {"content": {"content": "text"}}
REASONING: Final[Fields] = {
    "reasoning_content": {"open_pattern": r"\s*<think>\s*", "close_pattern": r"\s*</think>\s*", "content": "text"}
}


@dataclass(frozen=True, slots=True)
class CallMarks:
    """What stands around a call, which is {"name": ..., `arguments`: ...} itself."""

    opening: str
    closing: str
    space: str  # between the marks and the call
    arguments: str
    repeats: bool

    def fields(self) -> Fields:
        """The same for the response parser. A call that has no mark is an answer that begins with a brace."""
        call = {"repeats": True, "content": "text"}
        if self.opening:
            return {"tool_calls": {"open_pattern": rf"\s*{self.opening}", "close": self.closing, **call}}
        return {"tool_calls": {"open_pattern": BARE_OPENING, **call}}


HERMES: Final = CallMarks("<tool_call>", "</tool_call>", "\n", "arguments", repeats=True)  # and Qwen
BARE: Final = CallMarks("", "", "", "parameters", repeats=False)  # Llama 3's JSON format; any model can be held to it


@dataclass(frozen=True, slots=True)
class Syntax:
    """One checkpoint's way."""

    fields: Fields  # of the response parser, for an answer that is free
    anchor: dict[str, Any]  # where in a prompt the answer begins; empty when only an open <think> matters
    marks: CallMarks | None  # None: a way of its own, which the parser can read but no grammar here can write

    @classmethod
    def of(cls, tokenizer: Any, shown: str) -> Self:
        """The tokenizer's own response template, else what the chat template shows."""
        if own := getattr(tokenizer, "response_template", None):
            fields = {name: _plain(field) for name, field in own["fields"].items()}
            anchor = {key: own[key] for key in ("start_anchor", "start_anchor_pattern") if key in own}
            return cls(fields, anchor, HERMES if _is_hermes(own, shown) else None)
        marks = HERMES if HERMES.opening in shown else BARE
        reasoning = REASONING if THINK_END in shown else {}
        return cls({**reasoning, **marks.fields(), **CONTENT}, {}, marks)

    def reading(self, *, tools: bool, required: bool) -> Fields:
        """The fields to look for in an answer."""
        reasoning = {name: field for name, field in self.fields.items() if name != "tool_calls"}
        if required:
            return {**reasoning, **(self.marks or BARE).fields()}
        return self.fields if tools else reasoning

    @property
    def thinks(self) -> bool:
        """Whether answers can have reasoning before them."""
        return any(name not in ("tool_calls", "content") for name in self.fields)


def _is_hermes(template: dict[str, Any], shown: str) -> bool:
    field = template["fields"].get("tool_calls", {})
    opening = str(field.get("open", field.get("open_pattern", "")))
    return HERMES.opening in shown and opening.endswith(HERMES.opening) and field.get("content") == "json"


def _plain(field: Fields) -> Fields:
    """JSON calls are read as they come; the parser itself would wait for their end, and break on a call cut short."""
    if field.get("content") != "json" or field.get("transform") != {"type": "function", "function": "{content}"}:
        return field
    return {**{key: value for key, value in field.items() if key != "transform"}, "content": "text"}
