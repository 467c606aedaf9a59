"""The text of a custom tool's call, out of the arguments {"input": "..."} that a model writes. Pure."""

import json
import re

HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
LOW = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
ESCAPE = rf'\\["\\/bfnrt]|{HIGH}{LOW}|\\u(?![dD][89abAB])[0-9a-fA-F]{{4}}'
WHOLE = re.compile(rf'(?:[^"\\]|{ESCAPE})*')  # up to the string's end, or to an escape that is not complete yet


class CustomInput:
    """The input of one custom tool's call, decoded from its JSON arguments: `feed` pieces as they come, then
    `finish`."""

    def __init__(self) -> None:
        self._arguments = ""
        self._parsed: int | None = None  # characters of them; None before the text begins
        self.text = ""  # so far

    def feed(self, arguments: str) -> str:
        """Add a piece of the arguments, and return the new part of the text."""
        self._arguments += arguments
        if self._parsed is None and (head := HEAD.match(self._arguments)):
            self._parsed = head.end()
        if self._parsed is None:
            return ""
        new = next(WHOLE.finditer(self._arguments, self._parsed))  # it may be empty
        self._parsed = new.end()
        return self._add(json.loads(f'"{new[0]}"', strict=False))

    def finish(self) -> str:
        """Return the rest of the text: arguments of another shape are the text as they are."""
        return self._add(self._arguments) if self._parsed is None else ""

    def _add(self, text: str) -> str:
        text = text.encode(errors="replace").decode()  # half a surrogate pair can't be sent
        self.text += text
        return text
