"""The dialects of this server. Take a dialect's two lines out here, and delete its folder, to leave it out."""

from server.dialects.anthropic.dialect import ANTHROPIC
from server.dialects.gemini.dialect import GEMINI
from server.http.dialect import Dialect

DIALECTS: tuple[Dialect, ...] = (
    ANTHROPIC,
    GEMINI,
)
