"""The registration of Google's generateContent."""

import re

from server.dialects.gemini.errors import error_answer
from server.dialects.gemini.routes import refusals, router, stable
from server.http.dialect import Dialect

GEMINI = Dialect(
    vendor="Google",
    routers=(stable, router, refusals),
    paths=re.compile(r"/v1beta/|/v1/models/.*:(\w+Contents?|countTokens|generateAnswer|predict(LongRunning)?)$"),
    error_answer=error_answer,
    key_headers=("x-goog-api-key",),
    key_query=("/v1beta/", "key"),
)
