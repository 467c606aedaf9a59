"""The parts of this server beside its core. Whoever takes a line out here, and the folder that it names, leaves it
out."""

from server.dialects.anthropic.dialect import ANTHROPIC
from server.dialects.gemini.dialect import GEMINI
from server.http.dialect import Dialect

DIALECTS: tuple[Dialect, ...] = (ANTHROPIC, GEMINI)
