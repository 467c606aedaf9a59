"""A dialect is a folder and a line in the list of extras: an app that is handed a made-up one serves all of it."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import APIRouter, Request
from pydantic import BaseModel
from typing_extensions import TypedDict

from server.errors import ApiError
from server.extras import DIALECTS
from server.http.bodies import read_json
from server.http.deps import Caller, ServicesDep
from server.http.dialect import Dialect
from server.http.errors import refuse_endpoints
from server.http.openapi import errors_as, json_body, returns
from server.schemas.validation import validate
from tests.support.in_process import InProcess, in_process

pytestmark = pytest.mark.asyncio(loop_scope="module")


class SayBody(BaseModel):
    """POST /parrot/say."""

    line: str


class Said(TypedDict):
    """What the parrot answers."""

    said: str


class Squawk(TypedDict):
    """The body of every error."""

    squawk: str


router = APIRouter(prefix="/parrot")
refuse_endpoints(router, "", {"sing": "Singing is"}, "It serves /parrot/say.")


@router.post(
    "/say",
    response_description="The line.",
    responses={**returns(Said), **errors_as(Squawk, (400, 401, 500))},
    openapi_extra={"requestBody": json_body(SayBody, {"a line": {"line": "hello"}})},
)
async def send(request: Request, _: Caller, services: ServicesDep) -> Said:
    """Say a line.

    Answers with the same line.
    """
    return {"said": validate(SayBody, await read_json(request, _, services), strict=True).line}


def squawk(error: ApiError) -> tuple[int, dict[str, Any]]:
    return error.status, {"squawk": error.message}


PARROT = Dialect(
    vendor="Polly",
    routers=(router,),
    paths=re.compile(r"/parrot(/|$)"),
    error_answer=squawk,
    key_headers=("x-polly-key",),
    key_query=("/parrot/", "polly"),
    request_id_header="polly-request",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    home: Path = tmp_path_factory.mktemp("home")
    async with in_process(home, dialects=(*DIALECTS, PARROT), cors_origins=["https://one.example"]) as app:
        yield app


@pytest.fixture
def secret(running: InProcess) -> str:
    return running.client.headers["Authorization"].removeprefix("Bearer ")


@pytest_asyncio.fixture(loop_scope="module")
async def stranger(running: InProcess) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key."""
    transport = httpx.ASGITransport(app=running.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_its_route_answers_and_names_the_request(running: InProcess) -> None:
    said = await running.client.post("/parrot/say", json={"line": "hello"})
    assert (said.status_code, said.json()) == (200, {"said": "hello"})
    assert said.headers["polly-request"] == said.headers["x-request-id"]


async def test_its_key_is_read_from_its_header_and_its_query(stranger: httpx.AsyncClient, secret: str) -> None:
    line = {"line": "hello"}
    by_header = await stranger.post("/parrot/say", json=line, headers={"x-polly-key": secret})
    by_query = await stranger.post(f"/parrot/say?polly={secret}", json=line)
    assert (by_header.status_code, by_query.status_code) == (200, 200)
    assert (await stranger.get("/v1/models", headers={"x-polly-key": secret})).status_code == 200
    assert (await stranger.get(f"/v1/models?polly={secret}")).status_code == 401  # a URL is written into logs


async def test_its_errors_have_its_shape_wherever_they_arise(running: InProcess, stranger: httpx.AsyncClient) -> None:
    nobody = await stranger.post("/parrot/say", json={"line": "hello"})
    assert (nobody.status_code, list(nobody.json())) == (401, ["squawk"])
    invalid = await running.client.post("/parrot/say", json={"line": 7})
    assert (invalid.status_code, list(invalid.json())) == (400, ["squawk"])
    undecodable = await running.client.post("/parrot/say", content=b"x", headers={"Content-Encoding": "zstd"})
    assert (undecodable.status_code, list(undecodable.json())) == (415, ["squawk"])
    unsupported = await running.client.post("/parrot/sing", json={})
    assert unsupported.status_code == 404
    assert unsupported.json()["squawk"] == "Singing is not supported by this server. It serves /parrot/say."
    assert list((await running.client.get("/v1/models/none")).json()) == ["error"]


async def test_a_wrong_base_url_names_its_clients(running: InProcess) -> None:
    error = (await running.client.get("/v1/v1/models")).json()["error"]
    assert "that of Anthropic's and Google's and Polly's does not" in error["message"]


async def test_pages_of_allowed_origins_may_call_it(stranger: httpx.AsyncClient) -> None:
    asked = {"Origin": "https://one.example", "Access-Control-Request-Method": "POST"}
    assert (await stranger.options("/parrot/say", headers=asked)).status_code == 200
    answered = await stranger.get("/parrot/say", headers={"Origin": "https://one.example"})
    assert "polly-request" in answered.headers["access-control-expose-headers"]


async def test_the_description_of_the_api_has_it(running: InProcess) -> None:
    document = running.app.openapi()
    body = document["paths"]["/parrot/say"]["post"]["requestBody"]["content"]["application/json"]
    assert body["examples"] == {"a line": {"value": {"line": "hello"}}}
    assert "/parrot/sing" not in document["paths"]
    assert "`x-polly-key`" in document["info"]["description"]


async def test_a_server_without_dialects_has_none_of_their_urls(tmp_path: Path) -> None:
    async with in_process(tmp_path, dialects=()) as app:
        answer = await app.client.post("/v1/messages", json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")
        assert "request-id" not in answer.headers
        misplaced = (await app.client.get("/v1/v1/models")).json()["error"]["message"]
        assert misplaced.endswith("the base URL of OpenAI's clients ends in /v1.")
