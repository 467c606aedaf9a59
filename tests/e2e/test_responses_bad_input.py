"""Invalid calls of /v1/responses: an error in OpenAI's shape names the field, nothing runs or is charged."""

from typing import Any

import pytest

from tests.support.harness import Server, charges

IMAGE: Any = {"type": "image_generation"}
UNSUPPORTED = "unsupported_value"
BROKEN = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}
LOOSE = {"type": "object", "properties": {"a": {"type": "string"}}}
BAD: list[tuple[dict[str, Any], int, str | None, str | None]] = [
    ({}, 400, "input", "missing_required_parameter"),
    ({"input": 5}, 400, "input", "invalid_type"),
    ({"input": ""}, 400, "input", "string_below_min_length"),
    ({"input": "x", "model": "gamma"}, 404, "model", "model_not_found"),
    ({"input": "x", "model": "alpha-image-2-count"}, 404, "model", "model_not_found"),
    (
        {"input": "x", "tools": [{"type": "web_search"}], "tool_choice": "required"},
        400,
        "tools[0].type",
        "invalid_value",
    ),
    ({"input": [{"role": "king", "content": "x"}]}, 400, "input[0].role", "invalid_value"),
    ({"input": [{"type": "input_audio"}]}, 400, "input[0].type", "invalid_value"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        400,
        "input[0].content[0].type",
        "invalid_value",
    ),
    ({"input": [{"type": "item_reference", "id": "msg_x"}]}, 400, "input[0].id", "invalid_value"),
    ({"input": [{"type": "image_generation_call", "id": "ig_x"}]}, 400, "input[0].id", "invalid_value"),
    ({"input": [BROKEN], "tools": [IMAGE]}, 400, "input", "invalid_image_file"),
    ({"input": "x", "previous_response_id": "resp_x"}, 400, "previous_response_id", "previous_response_not_found"),
    ({"input": "x", "background": True, "store": False}, 400, "background", "invalid_parameter_combination"),
    ({"input": "x", "stream_options": {}}, 400, "stream_options", "invalid_parameter_combination"),
    ({"input": "x", "conversation": "c"}, 404, "conversation", "conversation_not_found"),
    (
        {"input": "x", "conversation": "c", "previous_response_id": "r"},
        400,
        "conversation",
        "invalid_parameter_combination",
    ),
    ({"input": "x", "reasoning": {"effort": 3}}, 400, "reasoning.effort", "invalid_type"),
    ({"input": "x", "max_output_tokens": 1}, 400, "max_output_tokens", "integer_below_min_value"),
    ({"input": "x", "temperature": 3.5}, 400, "temperature", "decimal_above_max_value"),
    ({"input": "x", "truncation": "middle"}, 400, "truncation", "invalid_value"),
    ({"input": "x", "tool_choice": "required"}, 400, "tool_choice", "invalid_value"),
    ({"input": "x", "tool_choice": IMAGE}, 400, "tool_choice", "invalid_value"),
    ({"input": "x", "tools": [IMAGE, IMAGE]}, 400, "tools[1]", "invalid_value"),
    ({"input": "x", "tools": [{**IMAGE, "size": "large"}]}, 400, "tools[0].size", "invalid_value"),
    (
        {"input": "x", "tools": [{**IMAGE, "quality": "low", "model": "beta-3-pro-image-count"}]},
        400,
        "tools[0].quality",
        "unsupported_parameter",
    ),
    ({"input": "x", "tools": [{**IMAGE, "model": "gamma"}]}, 404, "model", "model_not_found"),
    (
        {"input": "x", "tools": [{**IMAGE, "background": "transparent", "output_format": "jpeg"}]},
        400,
        "tools[0].output_format",
        "unsupported_value",
    ),
    (
        {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": LOOSE, "strict": True}]},
        400,
        "tools[0].parameters",
        "invalid_function_parameters",
    ),
    (
        {"input": "x", "text": {"format": {"type": "json_schema", "name": "s", "schema": LOOSE, "strict": True}}},
        400,
        "text.format.schema",
        "invalid_json_schema",
    ),
]


@pytest.mark.parametrize(("body", "status", "param", "code"), BAD)
def test_bad_input_names_the_field(
    responses_server: Server, body: dict[str, Any], status: int, param: str | None, code: str | None
) -> None:
    with responses_server.http() as client:
        answer = client.post("/v1/responses", json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/responses/resp_x", 404),
        ("DELETE", "/v1/responses/resp_x", 404),
        ("POST", "/v1/responses/resp_x/cancel", 404),
        ("GET", "/v1/responses/resp_x/input_items", 404),
        ("GET", "/v1/responses/resp_x?stream=true&starting_after=no", 400),
        ("GET", "/v1/responses/resp_x?stream=maybe", 400),
        ("GET", "/v1/responses/resp_x/input_items?limit=101", 400),
        ("GET", "/v1/responses/resp_x/input_items?order=up", 400),
        ("GET", "/v1/responses", 405),
    ],
)
def test_an_unknown_id_or_query_is_an_error(responses_server: Server, method: str, path: str, status: int) -> None:
    with responses_server.http() as client:
        answer = client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_synchronous_response_is_neither_cancelled_nor_streamed_again(responses_server: Server) -> None:
    charged = charges(responses_server)
    with responses_server.http() as client:
        response = client.post("/v1/responses", json={"input": "hello", "max_output_tokens": 16}).json()
        cancelled = client.post(f"/v1/responses/{response['id']}/cancel")
        streamed = client.get(f"/v1/responses/{response['id']}", params={"stream": "true"})
    assert (cancelled.status_code, streamed.status_code) == (400, 400)
    assert "Cannot cancel a synchronous response." in cancelled.json()["error"]["message"]
    assert charges(responses_server) == charged
