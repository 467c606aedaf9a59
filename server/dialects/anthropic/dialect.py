"""The registration of Anthropic's Messages."""

import re

from server.dialects.anthropic.errors import error_answer
from server.dialects.anthropic.models import model_info, model_page
from server.dialects.anthropic.routes import router
from server.http.dialect import Dialect, ModelShapes

ANTHROPIC = Dialect(
    vendor="Anthropic",
    routers=(router,),
    paths=re.compile(r"/v1/messages(/|$)"),
    error_answer=error_answer,
    key_headers=("x-api-key",),
    request_id_header="request-id",
    client_headers=("anthropic-version", "x-api-key"),
    models=ModelShapes(one=model_info, page=model_page),
)
