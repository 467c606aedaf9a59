"""Hints in the name of a checkpoint about how it draws: distilled to few steps, or trained to predict v. A name is a
hint for people to check, so it is suggested and never applied by itself."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from pipelines.catalog.call_signature import PipelineSource
from pipelines.families.generic import SUFFIXES, family_stem
from pipelines.families.registry import all_families

WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # of names such as dreamshaperXL_lightning4Step
METHODS: Final = ("lightning", "turbo", "lcm", "tcd", "dmd")
STEPS: Final = re.compile(r"\b(\d{1,2}) ?steps?\b")
PREDICTS_V: Final = re.compile(r"\bv ?pred(iction)?\b")
CONSISTENT: Final = {  # trained to jump to the end of the schedule from any step, by schedulers that do so
    "lcm": "LCMScheduler", "dmd": "LCMScheduler", "tcd": "TCDScheduler",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NameHints:
    """The hints that were found in a name."""

    distilled: str | None = None  # the word that says so
    steps: int | None = None
    predicts_v: bool = False

    @property
    def scheduler(self) -> str | None:
        """Return the class name of the scheduler that the checkpoint was distilled for; None if it needs no special
        one."""
        return CONSISTENT.get(self.distilled or "")

    @property
    def found(self) -> str:
        """Describe the hint for the operator, such as "its name says turbo: check it"."""
        word = self.distilled or (f"{self.steps} steps" if self.steps is not None else "v prediction")
        return f"its name says {word}: check it"


def read_name_hints(name: str) -> NameHints:
    """Return the hints in a file's or a folder's name."""
    text = " ".join(WORDS.findall(name)).lower()
    distilled, steps = _distilled_pattern().search(text), STEPS.search(text)
    count = int(steps[1]) if steps is not None else 0
    return NameHints(
        distilled[1] if distilled is not None else None,
        count if 1 <= count <= 50 else None,
        PREDICTS_V.search(text) is not None,
    )


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
