"""The registration of Google's generateContent."""

import re

from server.dialects.gemini.errors import error_answer
from server.dialects.gemini.models import gemini_card, gemini_cards
from server.dialects.gemini.routes import refusals, router, stable
from server.http.dialect import Dialect, ModelShapes

GEMINI = Dialect(
    vendor="Google",
    routers=(stable, router, refusals),
    paths=re.compile(r"/v1beta/|/v1/models/.*:(\w+Contents?|countTokens|generateAnswer|predict(LongRunning)?)$"),
    error_answer=error_answer,
    key_headers=("x-goog-api-key",),
    key_query=("/v1beta/", "key"),
    client_headers=("x-goog-api-key", "x-goog-api-client"),
    models=ModelShapes(one=gemini_card, page=gemini_cards),
)
