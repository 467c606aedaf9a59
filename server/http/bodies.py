"""Reading a body: the key takes a place and a share of memory first."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from server.accounts.keys import Key
from server.flows.call_recording import describe_body
from server.http.body_limit import body_lease
from server.http.deps import Caller, ServicesDep
from server.schemas.validation import parse_json, validate
from server.services import Services
from server.state.active_job import ActiveJob
from server.state.body_budget import LARGE_BYTES
from server.telemetry.call_trace import current_trace

Model = TypeVar("Model", bound=BaseModel)


class JsonBody(Generic[Model]):
    """A dependency of an operator's route: the body as a `model`, which /openapi.json shows with `examples`."""

    def __init__(self, model: type[Model], examples: Mapping[str, Any]) -> None:
        self.model = model
        self.examples = examples

    async def __call__(self, request: Request) -> Model:
        """Read and validate the body; none is an empty object. Raises ApiError with the field's name."""
        return validate(self.model, parse_json(await request.body() or b"{}"), strict=True)


class KeyedJsonBody(JsonBody[Model]):
    """A JSON body of a key's route: the key takes a place and a share of memory first, and a thread validates."""

    async def __call__(self, request: Request, key: Caller, services: ServicesDep) -> Model:  # type: ignore[override]
        """Read and validate the body. Raises ApiError with the field's name."""
        values = await read_json(request, key, services)
        return await asyncio.to_thread(partial(validate, self.model, values, strict=True))


@asynccontextmanager
async def receiving_body(request: Request, key: Key, services: Services) -> AsyncIterator[None]:
    """Read the body while this is entered. Raises RateLimited and Overloaded."""
    current_trace().runs_model = True
    async with services.running.bodies.place(key.id, services.admission.limiter.max_running(key)):
        await body_lease(request).begin(key.id)
        yield


async def read_json(request: Request, key: Key, services: Services) -> dict[str, Any]:
    """Read the JSON object in the body. Raises ApiError."""
    raw = bytearray()
    async with receiving_body(request, key, services):
        async for chunk in request.stream():
            raw += chunk
        async with services.running.bodies.parsing if len(raw) >= LARGE_BYTES else nullcontext():
            values = await asyncio.to_thread(parse_json, raw)
    describe_body(current_trace(), values)
    return values


def hold_body(request: Request, job: ActiveJob[Any]) -> None:
    """Count the body until this job has ended, if the request has begun it: it may go on without its client."""
    if not job.replayed and not job.was_followed:
        job.when_done(body_lease(request).share())
