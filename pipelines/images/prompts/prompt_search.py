"""The place of a prompt in a tokenizer's input: pipelines put it into templates, and some clean it first. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

ALIKE = 0.5  # share of a prompt's words that a cleaned form of it still has


@dataclass(frozen=True, slots=True)
class PromptPlace:
    """A prompt in a text. `prompt` is as the text has it, `whole` as the caller wrote it, from `offset` on; None where
    the two can't be compared character by character."""

    whole: str
    head: str
    prompt: str
    tail: str
    offset: int | None


def find_prompt(text: str, prompts: Sequence[str]) -> PromptPlace | None:
    """Return the place of the longest of the prompts that the text has, as it is, stripped or in lower case; else the
    text as a cleaned form of the prompt that it is most like."""
    for whole in sorted(prompts, key=len, reverse=True):
        for form in dict.fromkeys((whole, whole.strip(), whole.lower(), whole.lower().strip())):
            start = text.rfind(form)
            if start >= 0:
                offset = 0 if form[0].isspace() else len(whole) - len(whole.lstrip())
                return PromptPlace(whole, text[:start], form, text[start + len(form) :], offset)
    if find_containing_prompt(text, prompts) is not None:
        return None
    similarity, whole = max(((_similarity(text, each), each) for each in prompts), default=(0.0, ""))
    return PromptPlace(whole, "", text, "", None) if similarity >= ALIKE else None


def find_containing_prompt(text: str, prompts: Sequence[str]) -> str | None:
    """Return the longest prompt that the text is a piece of."""
    return max((each for each in prompts if text.strip() and text in each), key=len, default=None)


def _similarity(text: str, prompt: str) -> float:
    words = set(re.findall(r"\w+", prompt.lower()))
    return len(words & set(re.findall(r"\w+", text.lower()))) / max(1, len(words))
