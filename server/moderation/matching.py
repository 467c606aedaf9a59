"""Matching of blocked words and patterns in normalised text. Pure."""

import re
import unicodedata
from collections.abc import Iterable

WIDE = ("W", "F")  # Chinese, Japanese, Korean: no spaces between words, so no word boundaries to check


def normalise(text: str) -> str:
    """One form for all spellings: NFKC, case folded, no invisible characters, single spaces."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    visible = "".join(character for character in folded if unicodedata.category(character) != "Cf")
    return " ".join(visible.split())


def compile_rule(terms: Iterable[str], patterns: Iterable[str]) -> re.Pattern[str]:
    """One expression for normalised text: the terms as whole words, the patterns as they are. Raises re.error."""
    return re.compile("|".join([*map(_whole_word, terms), *(f"(?:{pattern})" for pattern in patterns)]), re.IGNORECASE)


def _whole_word(term: str) -> str:
    plain = normalise(term)
    before = "" if unicodedata.east_asian_width(plain[0]) in WIDE else r"(?<![^\W_])"
    after = "" if unicodedata.east_asian_width(plain[-1]) in WIDE else r"(?![^\W_])"
    return f"{before}{re.escape(plain)}{after}"
