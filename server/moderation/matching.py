"""Matching of blocked words and patterns in normalised text. Pure."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from server.moderation.normalisation import normalise, skeleton

WIDE = ("W", "F")  # Chinese, Japanese, Korean: no spaces between words, so no word boundaries to check
INSIDE = r"(?:[^\w\s]|_)*"  # between the letters of a word: punctuation, but no space, or "pen is" were a word
BETWEEN = r"[\W_]*"  # between the words of a term


@dataclass(frozen=True, slots=True)
class SearchedTexts:
    """The texts of one call in the forms that are searched, which all rules share."""

    normalised: tuple[str, ...]
    skeletons: tuple[str, ...]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Prepare each text, and all of them one after another, with and without a space between. Slow for long
        texts."""
        split = [" ".join(texts), "".join(texts)] if len(texts) > 1 else []
        return cls(tuple(map(normalise, [*texts, *split])), tuple(map(skeleton, [*texts, *split])))


class Expression:
    """Blocked terms, as whole words in the skeletons of texts, and patterns in both forms."""

    def __init__(self, terms: Iterable[str], patterns: Iterable[str]) -> None:
        """Compile the terms and patterns. Raises re.error."""
        self._terms = _compile([spelling for term in terms for spelling in _spellings(term)])
        self._patterns = _compile([f"(?:{pattern})" for pattern in patterns])

    def search(self, texts: SearchedTexts) -> str | None:
        """Return the first match in one of the texts, or over several of them; None if there is none."""
        for normalised, bare in zip(texts.normalised, texts.skeletons, strict=True):
            for expression, text in ((self._terms, bare), (self._patterns, normalised), (self._patterns, bare)):
                if expression is not None and (found := expression.search(text)):
                    return found[0]
        return None


def _compile(alternatives: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(alternatives), re.IGNORECASE) if alternatives else None


def _spellings(term: str) -> list[str]:
    """Return expressions for a term: with punctuation between its letters, and with a space between all of them."""
    plain = skeleton(term)
    words = [[re.escape(letter) for letter in word] for word in plain.split()]
    together = BETWEEN.join(INSIDE.join(letters) for letters in words)
    spaced = r"\s+".join(letter for letters in words for letter in letters)
    before = "" if unicodedata.east_asian_width(plain[0]) in WIDE else r"(?<![^\W_])"
    after = "" if unicodedata.east_asian_width(plain[-1]) in WIDE else r"(?![^\W_])"
    return [f"{before}{together}{after}", *([f"{before}{spaced}{after}"] if len(plain) > 2 else [])]
