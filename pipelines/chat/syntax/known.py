"""What the table of families says of one."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from pipelines.chat.syntax.calls import CallFormat
from pipelines.chat.syntax.thoughts import Thoughts


@dataclass(frozen=True, slots=True)
class KnownSyntax:
    """A syntax, and what it is known by: all of `marks` in the template, or the model's type."""

    calls: CallFormat
    marks: tuple[str, ...]
    model_types: tuple[str, ...] = ()
    tokens: tuple[str, ...] | None = None  # which the tokenizer must have, where the type decides; None: the first mark
    thoughts: Thoughts | None = None  # its own; None: found by the template's marks
    marker: str = ""  # a regular expression of what is dropped from texts

    def fits(self, model_type: str, vocabulary: set[str]) -> bool:
        """Return whether models of this type write so, if their tokenizer has these tokens."""
        tokens = (self.calls.opening,) if self.tokens is None else self.tokens
        return model_type in self.model_types and vocabulary.issuperset(tokens)


JSON_CALL: Final = partial(CallFormat, head='{"name": "{name}", "arguments": ', tail="}")
