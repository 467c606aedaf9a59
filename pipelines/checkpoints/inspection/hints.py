"""What people wrote of how a checkpoint draws: in its card, and in its name. Both are suggested, never applied.

A card, README.md, shows in code how the checkpoint is called: by an argument of a call, an entry of a dict, or a
variable. Of several examples that differ, the one that names the checkpoint counts. A name may say that it was
distilled to few steps, or trained to predict v.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from pipelines.checkpoints.classes.source import PipelineSource
from pipelines.checkpoints.folder.versions import HUB_CACHE, cache_of
from pipelines.families.generic import SUFFIXES, family_stem
from pipelines.families.registry import all_families

FENCED: Final = re.compile(r"^[ \t]*(```|~~~)[^\n]*\n(.*?)^[ \t]*\1", re.MULTILINE | re.DOTALL)
COMMENT: Final = re.compile(r"(^|\s)#.*$", re.MULTILINE)
NUMBER: Final = r"-?\d+(?:\.\d*)?"
WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # of names such as dreamshaperXL_lightning4Step
METHODS: Final = ("lightning", "turbo", "lcm", "tcd", "dmd")
STEPS: Final = re.compile(r"\b(\d{1,2}) ?steps?\b")
PREDICTS_V: Final = re.compile(r"\bv ?pred(iction)?\b")
GUIDED: Final = re.compile(r"\bcfg\b")
UNNAMED: Final = {"pytorch_lora_weights", "adapter_model", "diffusion_pytorch_model"}  # their folders have a name
CONSISTENT: Final = {  # trained to jump to the end of the schedule from any step, by schedulers that do so
    "lcm": "LCMScheduler", "dmd": "LCMScheduler", "tcd": "TCDScheduler",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CardValue:
    """A value in a card. It is `is_certain` if no example says otherwise, or if its example names the checkpoint."""

    value: float
    is_certain: bool


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


@dataclass(frozen=True, slots=True)
class NameHints:
    """The hints that were found in a name."""

    distilled: str | None = None  # the word that says so
    steps: int | None = None
    predicts_v: bool = False
    guided: bool = False  # of few steps with guidance
    whose: str = "its"

    @property
    def scheduler(self) -> str | None:
        """Return the class name of the scheduler that the checkpoint was distilled for; None if it needs no special
        one."""
        return CONSISTENT.get(self.distilled or "")

    @property
    def few_steps(self) -> str | None:
        """Return how the name says that it was distilled, such as "lightning, 4 steps"."""
        steps = [] if self.steps is None else [f"{self.steps} steps"]
        return None if self.distilled is None else ", ".join([self.distilled, *steps])

    @property
    def found(self) -> str:
        """Describe the hint for the operator, such as "its name says turbo: check it"."""
        word = self.distilled or (f"{self.steps} steps" if self.steps is not None else "v prediction")
        return f"{self.whose} name says {word}: check it"


def read_name_hints(name: str) -> NameHints:
    """Return the hints in a file's or a folder's name."""
    text = " ".join(WORDS.findall(name)).lower()
    distilled, steps = _distilled_pattern().search(text), STEPS.search(text)
    count = int(steps[1]) if steps is not None else 0
    return NameHints(
        distilled[1] if distilled is not None else None,
        count if 1 <= count <= 50 else None,
        PREDICTS_V.search(text) is not None,
        GUIDED.search(text) is not None,
    )


@dataclass(frozen=True, slots=True)
class Description:
    """The card beside the weights, with the names that the checkpoint may have in it, and the hints in its own name.
    The card is empty if there is none."""

    card: str
    names: tuple[str, ...] = ()
    hints: NameHints = field(default_factory=NameHints)

    @classmethod
    def of(cls, checkpoint: Path) -> "Description":
        """Read what is written of a file or a folder: by its own name, or by that of the download that it is in."""
        is_file, cache = checkpoint.is_file(), cache_of(checkpoint)
        names = [checkpoint.name, checkpoint.stem] if is_file else [checkpoint.name] if cache is None else []
        if cache is not None:
            repository = cache.name.removeprefix(HUB_CACHE).replace("--", "/")
            names += [repository, repository.rpartition("/")[2]]
        try:
            text = ((checkpoint.parent if is_file else checkpoint) / "README.md").read_text(errors="replace")
        except OSError:
            text = ""
        own = checkpoint.stem if is_file else checkpoint.name
        if own in UNNAMED:
            own = checkpoint.parent.name
        return cls(text, tuple(names), read_name_hints(f"{cache.name if cache is not None else ''} {own}"))

    def value_of(self, argument: str) -> CardValue | None:
        """Return the value of a call's argument; None if the card has none."""
        fenced = [COMMENT.sub("", match[2]) for match in FENCED.finditer(self.card)]
        found = [(example, value) for example in fenced if (value := _value(example, argument, self.card)) is not None]
        if not found:
            value = _value(self.card, argument, self.card)
            return CardValue(value, True) if value is not None else None
        for name in self.names:
            whole_name = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)")
            if own := [value for example, value in found if whole_name.search(example)]:
                return CardValue(own[0], len(set(own)) == 1)
        return CardValue(found[0][1], len({value for _, value in found}) == 1)


def named_class(name: str, class_name: str, source: PipelineSource) -> str | None:
    """Return the pipeline class that a file's name suggests in place of another one, by a word that is in the class's
    name: trainings for other calls may have the same shapes. None if there is no such class, or if both draw with the
    same weights."""
    stem = family_stem(class_name)
    words = (word.capitalize() for word in WORDS.findall(name))
    found = (f"{stem}{word}Pipeline" for word in words if word not in SUFFIXES.values())
    return next(filter(source.has, found), None)


@cache
def _distilled_pattern() -> re.Pattern[str]:
    """Return a pattern of words that mean few steps. "hyper" does beside a family's name or a number of steps alone."""
    families = all_families()
    words = sorted({*METHODS, *(word for family in families for word in family.distilled_words)})
    names = [*(name for family in families for name in family.short_names), r"\d+ steps?"]
    return re.compile(rf"\b({'|'.join(words)}|hyper(?= ({'|'.join(names)})\b))\b")
