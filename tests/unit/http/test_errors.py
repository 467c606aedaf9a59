"""Errors in the shape of the protocol whose URL was called."""

from types import SimpleNamespace
from typing import Any

import pytest

from server.errors import (
    ApiError,
    BadRequest,
    EngineFailure,
    ModerationBlocked,
    Overloaded,
    ReplayedError,
    TooLarge,
    Unauthorized,
)
from server.extras import DIALECTS
from server.http.errors import error_answer, send_error

BAD = BadRequest("Invalid 'n'.", param="n", code="invalid_type")
APP = SimpleNamespace(state=SimpleNamespace(dialects=DIALECTS))


def error_body(path: str, error: ApiError) -> Any:
    return error_answer({"path": path, "app": APP}, error)[1]


def test_openais_shape_is_that_of_all_other_urls() -> None:
    for path in ("/v1/images/generations", "/v1beta", "/", "/v1/chat/completions", "/v1/models/x", "/v1/messagesx"):
        assert error_body(path, BAD) == BAD.body()


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (BAD, "invalid_request_error", "INVALID_ARGUMENT"),
        (Unauthorized("?"), "authentication_error", "UNAUTHENTICATED"),
        (TooLarge("?"), "request_too_large", "INVALID_ARGUMENT"),
        (Overloaded("?", 1), "overloaded_error", "UNAVAILABLE"),
        (EngineFailure("?"), "api_error", "INTERNAL"),
    ],
)
def test_each_protocol_has_its_own_names(error: ApiError, kind: str, status: str) -> None:
    message = error_body("/v1/messages/count_tokens", error)
    assert (message["type"], message["error"]["type"]) == ("error", kind)
    for version in ("v1beta", "v1"):
        google = error_body(f"/{version}/models/x:generateContent", error)["error"]
        assert (google["code"], google["status"], google["message"]) == (error.status, status, error.message)


def test_the_field_and_the_code_are_told_in_every_protocol() -> None:
    assert error_body("/v1/messages", BAD)["error"] | {"param": "n", "code": "invalid_type"} == {
        "type": "invalid_request_error",
        "message": "Invalid 'n'.",
        "param": "n",
        "code": "invalid_type",
    }
    (info,) = error_body("/v1beta/models", BAD)["error"]["details"]
    assert (info["reason"], info["metadata"]) == ("INVALID_TYPE", {"field": "n"})


async def test_what_is_refused_before_its_route_has_that_shape_too() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    await send_error(Overloaded("full", 3), {"type": "http", "path": "/v1/messages", "app": APP}, receive, send)
    start, body = sent
    assert start["status"] == 503
    assert (b"retry-after", b"3") in start["headers"]
    assert b'"overloaded_error"' in body["body"]


def test_an_error_with_a_body_of_its_own_keeps_it() -> None:
    recorded = {"message": "no", "type": "image_generation_user_error", "param": "size", "code": "invalid_value"}
    assert error_body("/v1/images/generations", ReplayedError(400, recorded)) == {"error": recorded}


def test_what_the_policy_refuses_is_no_error_in_googles_protocol_alone() -> None:
    blocked = ModerationBlocked("no", "input", ["x"])
    statuses = [
        error_answer({"path": path, "app": APP}, blocked)[0]
        for path in ("/v1/chat/completions", "/v1/messages", "/v1beta/models/m:generateContent")
    ]
    assert statuses == [400, 400, 200]
