"""Which syntax of the table a checkpoint has: by how its template writes a call, by marks in it, or by its type.

A template that shows earlier calls to the model shows how the model writes them: the syntax by which such a call is
read as what it was is the right one, whatever else the template has in it.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from pipelines.chat.output_parser import OutputParser
from pipelines.chat.syntax.calls import CONTENT
from pipelines.chat.syntax.families import TABLE
from pipelines.chat.syntax.pieces import ToolCallPiece

SHOWN_NAME: Final = "qzcalled"
SHOWN_ARGUMENTS: Final = {"city": "qzvaluea"}
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": SHOWN_NAME, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def choose(template: str, model_type: str, vocabulary: set[str], shown: str) -> str | None:
    """Return the name of the syntax; None for one that the table lacks. `shown` is the probe's call as the template
    writes it, empty where it writes none."""
    marked = list(_marked_syntaxes(template))
    if shown:
        return next((name for name in (*marked, *TABLE) if parses_probe_call(name, shown)), None)
    typed = (name for name, known in TABLE.items() if known.fits(model_type, vocabulary))
    return next(iter((*marked, *typed)), None)


def parses_probe_call(name: str, shown: str) -> bool:
    """Return whether this syntax reads the probe's call in what the template wrote."""
    calls = TABLE[name].calls
    parser = OutputParser({**calls.parser_fields(), **CONTENT}, "", (TOOL,), calls)
    pieces = [*parser.feed(shown), *parser.flush()]
    found = [piece for piece in pieces if isinstance(piece, ToolCallPiece)]
    try:
        arguments = json.loads("".join(piece.arguments for piece in found))
    except ValueError:
        return False
    return [piece.name for piece in found if piece.name] == [SHOWN_NAME] and bool(arguments == SHOWN_ARGUMENTS)


def _marked_syntaxes(template: str) -> Iterator[str]:
    for name, known in TABLE.items():
        if all(mark in template for mark in known.marks):
            yield name
