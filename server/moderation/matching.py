"""Matching of blocked words and patterns in texts, of which all spellings have one form, in two strengths. Pure."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from confusable_homoglyphs.confusables import confusables_data

# Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties: characters that are not shown, though many are no
# format characters (category Cf), such as Hangul fillers and variation selectors. And the braille blank.
IGNORABLE = frozenset(
    character
    for first, last in (
        (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
        (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x2800, 0x2800), (0x3164, 0x3164), (0xFE00, 0xFE0F),
        (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A),
        (0xE0000, 0xE0FFF),
    )
    for character in map(chr, range(first, last + 1))
)  # fmt: skip


def _look_alikes() -> dict[int, str]:
    """Return a table from characters that look like an ASCII letter or digit to it, by Unicode's confusables (UTS
    39)."""
    table: dict[int, str] = {}
    for character, others in confusables_data.items():
        shown_as = [other["c"] for other in others if other["c"].isascii() and other["c"].isalnum()]
        if len(character) == 1 and not character.isascii() and shown_as:
            table[ord(character)] = shown_as[0].casefold()
    return table


LOOK_ALIKES = _look_alikes()


def normalise(text: str) -> str:
    """Normalise a text: NFKC, case folded, no invisible characters, single spaces."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join("".join(character for character in folded if not _is_invisible(character)).split())


def skeleton(text: str) -> str:
    """Normalise a text as `normalise` does, and also without combining marks and with look-alikes as the ASCII letters
    that they look like."""
    marked = unicodedata.normalize("NFKD", normalise(text).translate(LOOK_ALIKES))
    bare = "".join(character for character in marked if unicodedata.category(character) not in {"Mn", "Me"})
    return unicodedata.normalize("NFC", bare.translate(LOOK_ALIKES))


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) == "Cf" or character in IGNORABLE


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
