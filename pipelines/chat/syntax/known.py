"""What the table of families says of one."""

from dataclasses import dataclass

from pipelines.chat.syntax.calls import CallFormat
from pipelines.chat.syntax.thoughts import Thoughts


@dataclass(frozen=True, slots=True)
class Known:
    """A syntax, and what it is known by: all of `marks` in the template, or the model's type."""

    calls: CallFormat
    marks: tuple[str, ...]
    model_types: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()  # which the tokenizer must have too, where the type decides
    thoughts: Thoughts | None = None  # its own; None: found by the template's marks
    marker: str = ""  # a regular expression of what is dropped from texts


def json_call(**options: object) -> CallFormat:
    """Return a format of calls whose JSON has the keys `name` and `arguments`."""
    return CallFormat(head='{"name": "{name}", "arguments": ', tail="}", **options)  # type: ignore[arg-type]
