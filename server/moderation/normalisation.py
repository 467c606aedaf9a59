"""One form for all spellings of a text, in two strengths. Pure."""

import unicodedata

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
