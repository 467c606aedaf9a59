"""What a parser makes of a model's output, piece by piece."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPiece:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    text: str


@dataclass(frozen=True, slots=True)
class MarkerPiece:
    """The end of a region whose text is dropped, such as a header."""


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """More of call `index`: its name and id first, then parts of its arguments."""

    index: int
    arguments: str
    name: str | None = None
    call_id: str | None = None


Piece = TextPiece | ReasoningPiece | MarkerPiece | ToolCallPiece
