"""Reads arguments in the notation of Python's literals, or Gemma 4's, as JSON.

The JSON of a literal differs from it in quotes, in unquoted keys, and in three words.
"""

import re
import sys
from typing import Final

from pipelines.chat.syntax.arguments import ArgumentReader, json_string

WORDS: Final = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
HEXADECIMAL: Final = re.compile("[0-9a-fA-F]*")
DIGITS: Final = {"x": 2, "u": 4, "U": 8}  # of an escape
STRUCTURE: Final = frozenset("()[]{}=:,\"'")  # all else may be in a key, such as $filter
OPENING: Final = {"(": "[", "[": "[", "{": "{"}
CLOSING: Final = {")": "]", "]": "]", "}": "}"}


class LiteralReader(ArgumentReader):
    """Turns a literal into JSON, character by character."""

    def __init__(self, quotes: tuple[str, ...], names: list[str], *, opened: bool) -> None:
        self._quotes = quotes
        self._names = names  # of arguments without a name, in their order
        self._python = opened
        self._depth = 1 if opened else 0
        self._text = ""  # that was not read yet
        self._quote = ""  # of the open string
        self._word = ""
        self._position = 0  # of the argument
        self._named = False  # whether this argument's name came
        self._began = False

    def feed(self, text: str) -> str:
        """Return what is new, as JSON text."""
        self._text += text
        output = "" if self._began or not self._python else "{"
        self._began = True
        while self._text and self.rest is None:
            step = self._in_string() if self._quote else self._outside()
            if step is None:
                break
            output += step
        return output

    def _in_string(self) -> str | None:
        quote = self._quote
        if self._text.startswith(quote):
            self._text, self._quote = self._text[len(quote) :], ""
            return '"'
        if quote.startswith(self._text):  # what may become the closing quote
            return None
        if self._python and self._text[0] == "\\":
            return self._escape()
        character, self._text = self._text[0], self._text[1:]
        return json_string(character)[1:-1]

    def _escape(self) -> str | None:
        """Return the character that Python's escape stands for; a backslash that begins none is one itself."""
        digits = DIGITS.get(self._text[1:2], 0)
        if len(self._text) < 2 or (len(self._text) < 2 + digits and HEXADECIMAL.fullmatch(self._text[2:])):
            return None
        letter, code = self._text[1], self._text[2 : 2 + digits]
        if digits and HEXADECIMAL.fullmatch(code) and int(code, 16) <= sys.maxunicode:
            self._text = self._text[2 + digits :]
            return f"\\u{code}" if digits == 4 else json_string(chr(int(code, 16)))[1:-1]
        self._text = self._text[2:]
        if letter in 'nrtbf"\\/':
            return "\\" + letter
        return letter if letter == "'" else json_string("\\" + letter)[1:-1]

    def _outside(self) -> str | None:
        for quote in self._quotes:
            if self._text.startswith(quote):
                self._text, self._quote = self._text[len(quote) :], quote
                return self._ended_word() + self._name() + '"'
            if len(quote) > 1 and quote.startswith(self._text):
                return None
        character, self._text = self._text[0], self._text[1:]
        if character in STRUCTURE or (character.isspace() and not self._word):
            return self._punctuation(character)
        self._word += character
        return ""

    def _punctuation(self, character: str) -> str:
        if character in "=:" and self._word:
            key, self._word = self._word.strip(), ""
            self._named = self._named or self._depth == 1
            return json_string(key) + ": "
        value = self._ended_word()
        if character in OPENING:
            value += self._name() if self._depth == 1 else ""
            self._depth += 1
            return value + OPENING[character]
        if character in CLOSING:
            self._depth -= 1
            if not self._depth:
                self.rest, self._text = self._text, ""
                return value + "}"
            return value + CLOSING[character]
        if character == "," and self._depth == 1:
            self._position, self._named = self._position + 1, False
        return value + {",": ", ", ":": ": "}.get(character, "")

    def _ended_word(self) -> str:
        word, self._word = self._word.strip(), ""
        if not word:
            return ""
        known = WORDS.get(word) or (word if NUMBER.fullmatch(word) else json_string(word))
        return self._name() + known

    def _name(self) -> str:
        """Return the name of an argument that has none of its own."""
        if not self._python or self._named or self._depth != 1 or self._position >= len(self._names):
            return ""
        self._named = True
        return json_string(self._names[self._position]) + ": "
