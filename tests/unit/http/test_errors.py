"""Errors in the shape of the protocol whose URL was called."""

from types import SimpleNamespace
from typing import Any

import pytest

from server.errors import (
    ApiError,
    BadRequest,
    ContextExceeded,
    EngineFailure,
    ModelNotFound,
    ModerationBlocked,
    Overloaded,
    QuotaExceeded,
    RateLimited,
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
        assert (google["code"], google["status"]) == (error.status, status)
        assert google["message"].endswith(error.message)


LONG = ContextExceeded("Ours.", tokens=46_067, context=45_000)


@pytest.mark.parametrize(
    ("error", "anthropic", "google"),
    [
        (
            LONG,
            (400, "invalid_request_error", "prompt is too long: 46067 tokens > 45000 maximum. Ours."),
            (400, "The input token count (46067) exceeds the maximum number of tokens allowed (45000). Ours."),
        ),
        (
            ContextExceeded("Ours."),
            (400, "invalid_request_error", "prompt is too long. Ours."),
            (400, "The input token count exceeds the maximum number of tokens allowed. Ours."),
        ),
        (
            ContextExceeded("Ours.", tokens=7, context=8),  # it fits, beside no answer
            (400, "invalid_request_error", "prompt is too long. Ours."),
            (400, "The input token count exceeds the maximum number of tokens allowed (8). Ours."),
        ),
        (
            Unauthorized("Ours.", code="invalid_api_key"),
            (401, "authentication_error", "invalid x-api-key. Ours."),
            (401, "API key not valid. Please pass a valid API key. Ours."),
        ),
        (
            ModelNotFound("gone", "Ours."),
            (404, "not_found_error", "model: gone. Ours."),
            (404, "models/gone is not found for API version v1beta. Ours."),
        ),
        (
            TooLarge("Ours."),
            (413, "request_too_large", "Request exceeds the maximum size. Ours."),
            (413, "Request payload size exceeds the limit. Ours."),
        ),
        (RateLimited("Ours.", 7), (429, "rate_limit_error", "Ours."), (429, "Ours.")),
        (
            QuotaExceeded("Ours."),
            (402, "billing_error", "Your credit balance is too low. Ours."),
            (429, "You exceeded your current quota, please check your plan and billing details (limit: 0). Ours."),
        ),
        (
            Overloaded("Ours.", 3),
            (529, "overloaded_error", "Overloaded. Ours."),
            (503, "The model is overloaded. Please try again later. Ours."),
        ),
    ],
)
def test_what_clients_act_on_has_the_clients_words(
    error: ApiError, anthropic: tuple[int, str, str], google: tuple[int, str]
) -> None:
    status, message = error_answer({"path": "/v1/messages", "app": APP}, error)
    assert (status, message["error"]["type"], message["error"]["message"]) == anthropic
    status, body = error_answer({"path": "/v1beta/models/x:generateContent", "app": APP}, error)
    assert (status, body["error"]["message"]) == google
    assert body["error"]["code"] == status
    assert error_answer({"path": "/v1/chat/completions", "app": APP}, error) == (error.status, error.body())


def test_googles_clients_are_told_when_to_come_back() -> None:
    details = error_body("/v1beta/models/x:generateContent", RateLimited("?", 7))["error"]["details"]
    assert details[1] == {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}


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
    assert start["status"] == 529
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
