"""What the simulated GPU has seen, with the places in Python that it comes from."""

import sys
from collections import Counter
from types import FrameType
from typing import Literal, NamedTuple

Kind = Literal["sync", "race", "free", "assert"]
FAULTS = frozenset({"race", "free"})
LIBRARY = ("/torch/", "/threading.py", "/simulated_gpu/", "/contextlib.py")  # not where a wait is asked for
FRAMES = 6


class Seen(NamedTuple):
    """A wait of the host ("sync"), a fault ("race", "free"), or a kernel that has found wrong values ("assert")."""

    kind: Kind
    text: str
    place: str  # the innermost frames outside of torch, from the inside out


class Log:
    """Everything seen since it was last taken."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []

    def __call__(self, kind: Kind, text: str) -> None:
        self._seen.append(Seen(kind, text, _place()))

    def take(self) -> list[Seen]:
        """Return what was seen, and forget it."""
        taken, self._seen = self._seen, []
        return taken

    def faults(self) -> list[Seen]:
        """Return what would be undefined on a GPU: races, and memory that is freed too early."""
        return [seen for seen in self._seen if seen.kind in FAULTS]

    def waits(self) -> Counter[tuple[str, str]]:
        """Count the waits of the host by what it waited for, with numbers left out, and by place."""
        return Counter((_without_numbers(text), place) for kind, text, place in self._seen if kind == "sync")


def _without_numbers(text: str) -> str:
    return "".join("N" if letter.isdigit() else letter for letter in text)


def _place() -> str:
    frames: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(frames) < FRAMES:
        name = frame.f_code.co_filename
        if not any(part in name for part in LIBRARY):
            folder, _, file = name.rpartition("/")
            frames.append(f"{folder.rpartition('/')[2]}/{file}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(frames)
