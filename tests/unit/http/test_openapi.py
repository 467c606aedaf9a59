"""/openapi.json is valid, and leaves nothing of a route out."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from jsonschema import ValidationError
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel

from pipelines.protocol.chat import (
    ChatEvent,
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    TopToken,
)
from server.app import create_app
from server.data_folders import REPOSITORY
from server.dialects.anthropic.schema import CountBody, MessagesBody
from server.dialects.gemini.schema import CountTokensBody, GenerateBody
from server.extras import DIALECTS
from server.flows.chat.completion import CompletionHead, CompletionWriter
from server.routes import (
    account,
    admin,
    batches,
    chat,
    checkpoints,
    conversations,
    files,
    gateways,
    health,
    image_jobs,
    images,
    models,
    moderations,
    operator_keys,
    operator_queue,
    operator_reports,
    operator_teams,
    responses,
    results,
    upscale,
    workers,
)
from server.schemas.admin import SleepRequest, SwapRequest, WakeRequest
from server.schemas.batches import BatchBody
from server.schemas.chat import ChatBody
from server.schemas.checkpoints import AddRequest, InspectRequest, ProofRequest, RemoveRequest, VerifyRequest
from server.schemas.conversations import AddItems, ChangeConversation, CreateConversation
from server.schemas.images import EditForm, GenerationBody, UpscaleBody
from server.schemas.keys import ChangeKey, ChangeTeam, CreateKey, CreateTeam, RotateKey
from server.schemas.moderation import ModerationBody, ModerationTestRequest
from server.schemas.reports import CreateOperator, ResponseTitle
from server.schemas.response_answers import message_item, reasoning_item, text_part
from server.schemas.responses import CompactBody, ResponseBody
from server.settings import Settings
from tests.support.openapi import Json, check, operations, response

BODIES: dict[str, type[BaseModel]] = {
    "/admin/keys": CreateKey,
    "/admin/keys/{key}": ChangeKey,
    "/admin/keys/{key}/rotate": RotateKey,
    "/admin/moderation/test": ModerationTestRequest,
    "/admin/operators": CreateOperator,
    "/admin/checkpoints/add": AddRequest,
    "/admin/checkpoints/inspect": InspectRequest,
    "/admin/checkpoints/proof": ProofRequest,
    "/admin/checkpoints/remove": RemoveRequest,
    "/admin/checkpoints/verify": VerifyRequest,
    "/admin/teams": CreateTeam,
    "/admin/teams/{team}": ChangeTeam,
    "/admin/sleep": SleepRequest,
    "/admin/wake": WakeRequest,
    "/admin/swap": SwapRequest,
    "/v1/chat/completions": ChatBody,
    "/v1/images/edits": EditForm,
    "/v1/images/generations": GenerationBody,
    "/v1/images/upscale": UpscaleBody,
    "/v1/batches": BatchBody,
    "/v1/moderations": ModerationBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountBody,
    "/v1beta/models/{model}:countTokens": CountTokensBody,
    "/v1beta/models/{model}:generateContent": GenerateBody,
    "/v1beta/models/{model}:streamGenerateContent": GenerateBody,
    "/v1/conversations": CreateConversation,
    "/v1/conversations/{conversation_id}": ChangeConversation,
    "/v1/conversations/{conversation_id}/items": AddItems,
    "/v1/darkroom/responses/{response_id}": ResponseTitle,
    "/v1/responses": ResponseBody,
    "/v1/responses/compact": CompactBody,
    "/v1/responses/input_tokens": ResponseBody,
}
STREAMS = {
    "/admin/events",
    "/v1/chat/completions",
    "/v1/images/edits",
    "/v1/images/generations",
    "/v1/messages",
    "/v1/responses",
    "/v1beta/models/{model}:streamGenerateContent",
    "/v1/responses/{response_id}",
}
ROUTES = (
    account, admin, batches, chat, checkpoints, conversations, files, gateways, health, image_jobs, images, models,
    moderations,
    operator_keys, operator_queue, operator_reports, operator_teams, responses, results,
    upscale, workers,
)  # fmt: skip
WITHOUT_KEY = {"/cdn/{name}", "/healthz", "/metrics", "/readyz"}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    home = tmp_path_factory.mktemp("home")
    return create_app(Settings(home=home, weights=home, model_configs=REPOSITORY / "model_configs", database=None))


@pytest.fixture(scope="module")
def document(app: FastAPI) -> Json:
    return app.openapi()


def test_it_is_built_at_the_first_request_and_cached(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, weights=tmp_path, model_configs=REPOSITORY / "model_configs", database=None)
    fresh = create_app(settings)
    assert fresh.openapi_schema is None
    assert fresh.openapi() is fresh.openapi()


@pytest.mark.slow
def test_it_is_valid_and_says_what_it_describes(document: Json) -> None:
    OpenAPIV31SpecValidator(document).validate()
    info = document["info"]
    assert (info["title"], info["license"]["identifier"]) == ("Darkroom", "Apache-2.0")
    assert info["version"]
    assert info["description"]


def test_every_route_is_there(document: Json) -> None:
    found = {(method, path) for method, path, _ in operations(document)}
    served = {
        (method, route.path.replace(":path}", "}"))
        for router in (*(module.router for module in ROUTES), *(each for one in DIALECTS for each in one.routers))
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods
    }
    assert found == served


def test_every_operation_is_described(document: Json) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    for _, path, operation in operations(document):
        assert operation["summary"], path
        assert operation["description"].endswith("."), path
        assert bool(operation["security"]) == (path not in WITHOUT_KEY), path
        assert operation["security"] != [{"admin_key": []}] or path.startswith("/admin/")
        named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))
        assert all(each["description"] and each["schema"] for each in operation["parameters"]), path


def test_every_body_is_the_model_that_validates_it(document: Json) -> None:
    found = {
        path: operation["requestBody"] for _, path, operation in operations(document) if "requestBody" in operation
    }
    assert found.keys() == BODIES.keys()
    for path, body in found.items():
        named = {field.serialization_alias or name for name, field in BODIES[path].model_fields.items()}
        for media_type, content in body["content"].items():
            schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
            files = {"image", "mask"} if media_type == "multipart/form-data" else set()
            assert schema["properties"].keys() - files == named - files


def test_every_answer_has_a_schema_and_the_request_id(document: Json) -> None:
    for method, path, operation in operations(document):
        assert "200" in operation["responses"], path
        for status in operation["responses"]:
            if status == "default":
                continue
            found = response(document, operation, int(status))
            assert found["description"], (path, status)
            assert "x-request-id" in found["headers"], (path, status)
            assert found.get("content") or int(status) == 416, (method, path, status)
            assert all("schema" in content for content in found.get("content", {}).values())
        if operation["security"]:
            assert {"401", "500"} <= operation["responses"].keys(), path


def test_streams_are_those_of_the_routes_that_stream(document: Json) -> None:
    assert {
        path
        for _, path, operation in operations(document)
        if "text/event-stream" in operation["responses"]["200"]["content"]
    } == STREAMS


def test_every_example_matches_its_schema(document: Json) -> None:
    examples: list[tuple[Json, Any]] = []
    for _, _, operation in operations(document):
        for described in (operation.get("requestBody", {}), operation["responses"]["200"]):
            for content in described.get("content", {}).values():
                examples += [(content["schema"], each["value"]) for each in content.get("examples", {}).values()]
    for shared in document["components"]["responses"].values():
        content = shared["content"]["application/json"]
        examples += [(content["schema"], each["value"]) for each in content["examples"].values()]
    for schema, value in examples:
        check(document, schema, value)
    assert len(examples) > 20


async def test_completions_with_reasoning_and_tool_calls_match_their_schemas(document: Json) -> None:
    events: list[ChatEvent] = [
        ReasoningDelta(0, "hm"),
        TextDelta(0, "Hi", (TokenLogprob("Hi", b"Hi", -0.1, (TopToken("Hi", b"Hi", -0.1),)),)),
        ToolCallDelta(0, 0, "", "call_1", "weather"),
        ToolCallDelta(0, 0, "{}"),
        ChoiceFinished(0, "tool_calls"),
        ChatFinished(ChatUsage(3, 2, 1), 0.1),
    ]

    async def play() -> AsyncIterator[ChatEvent]:
        for event in events:
            yield event

    head = CompletionHead("chatcmpl-1", 1_760_000_000, "small", "fp_1")
    writer = CompletionWriter(head, logprobs=True, include_usage=True)
    completion = {"$ref": "#/components/schemas/ChatCompletion"}
    check(document, completion, await writer.collect(play()), exact=True)
    async for chunk in writer.chunks(play()):
        check(document, {"$ref": "#/components/schemas/ChatCompletionChunk"}, chunk, exact=True)


@pytest.mark.parametrize(
    "item",
    [
        message_item("msg_1", "incomplete", [text_part("Hi")]),
        reasoning_item("rs_1", "completed", "hm"),
    ],
)
def test_items_of_a_response_match_their_schemas(document: Json, item: Json) -> None:
    event = {"type": "response.output_item.done", "sequence_number": 1, "output_index": 0, "item": item}
    schema = {"$ref": "#/components/schemas/ResponseEvent"}
    check(document, schema, event, exact=True)
    with pytest.raises(ValidationError):
        check(document, schema, {**event, "item": {**item, "undocumented": 1}}, exact=True)


def test_names_of_schemas_are_plain(document: Json) -> None:
    """Two models with one name would get long names, and so would a model that differs in requests and answers."""
    assert [name for name in document["components"]["schemas"] if not name.isalnum()] == []
