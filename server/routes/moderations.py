"""POST /v1/moderations: what the operator's policy says of texts and images."""

import asyncio
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.http import examples
from server.http.bodies import read_json
from server.http.deps import Caller, ServicesDep, ignored_header
from server.http.listings import json_response
from server.http.openapi import RUN_ERRORS, json_body, returns
from server.schemas.moderation import Moderation, ModerationBody
from server.schemas.validation import ignored_fields, validate

router = APIRouter(prefix="/v1/moderations")


@router.post(
    "",
    response_description="A result for each text, or one for all parts.",
    responses=returns(Moderation, *RUN_ERRORS, headers=["x-darkroom-ignored"]),
    openapi_extra={"requestBody": json_body(ModerationBody, examples.MODERATION)},
)
async def moderate(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Moderate texts and images.

    Judges the input by the policy that holds for the key's calls. Nothing is refused, recorded or charged. A server
    without a policy flags nothing.
    """
    values = await read_json(request, key, services)
    body = await asyncio.to_thread(partial(validate, ModerationBody, values, strict=True))
    answer = json_response(await services.moderations.judge(key, body))
    answer.headers.update(ignored_header(ignored_fields(ModerationBody, values)))
    return answer
