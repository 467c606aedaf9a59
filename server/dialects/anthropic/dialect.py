"""The registration of Anthropic's Messages."""

import re

from server.dialects.anthropic.errors import error_answer
from server.dialects.anthropic.routes import router
from server.http.dialect import Dialect

ANTHROPIC = Dialect(
    vendor="Anthropic",
    routers=(router,),
    paths=re.compile(r"/v1/messages(/|$)"),
    error_answer=error_answer,
    key_headers=("x-api-key",),
    request_id_header="request-id",
)
