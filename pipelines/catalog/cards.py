"""The values in a checkpoint's card: README.md, whose author shows in code how the checkpoint is called.

A value is an argument of a call, an entry of a dict, or a variable. Of several examples that differ, the one that names
the checkpoint counts.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FENCED: Final = re.compile(r"^[ \t]*(```|~~~)[^\n]*\n(.*?)^[ \t]*\1", re.MULTILINE | re.DOTALL)
COMMENT: Final = re.compile(r"(^|\s)#.*$", re.MULTILINE)
NUMBER: Final = r"-?\d+(?:\.\d*)?"


@dataclass(frozen=True, slots=True)
class CardValue:
    """A value in a card. It is `is_certain` if no example says otherwise, or if its example names the checkpoint."""

    value: float
    is_certain: bool


def read_card(folder: Path) -> str:
    """Read the card beside the weights. It is empty if there is none."""
    try:
        return (folder / "README.md").read_text(errors="replace")
    except OSError:
        return ""


def read_card_value(card: str, argument: str, names: Sequence[str]) -> CardValue | None:
    """Return the value of a call's argument; None if the card has none. `names` are those that the checkpoint may have
    in its card, such as those of its file and of its repository."""
    fenced = [COMMENT.sub("", match[2]) for match in FENCED.finditer(card)]
    found = [(example, value) for example in fenced if (value := _value(example, argument, card)) is not None]
    if not found:
        value = _value(card, argument, card)
        return CardValue(value, True) if value is not None else None
    for name in names:
        whole_name = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)")
        if own := [value for example, value in found if whole_name.search(example)]:
            return CardValue(own[0], len(set(own)) == 1)
    return CardValue(found[0][1], len({value for _, value in found}) == 1)


def _value(text: str, argument: str, card: str) -> float | None:
    """Return the first value of an argument that is a number, or a variable that is one in the text or elsewhere."""
    for value in _find_values(text, argument):
        if re.fullmatch(NUMBER, value):
            return float(value)
        numbers = (each for where in (text, card) for each in _find_values(where, value))
        if number := next((each for each in numbers if re.fullmatch(NUMBER, each)), None):
            return float(number)
    return None


def _find_values(text: str, name: str) -> Iterator[str]:
    """Yield what is written for a name: `name = 4`, `name: int = 4`, `"name": 4`, `name=steps`."""
    pattern = rf"""(?<![\w.]){name}(?:["']\s*:|(?:\s*:\s*\w+)?\s*=(?!=))\s*({NUMBER}|[A-Za-z_]\w*)"""
    yield from (match[1] for match in re.finditer(pattern, text))
