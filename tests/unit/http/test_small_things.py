"""What clients do besides the SDKs: slashes, HEAD, compressed bodies, other headers for the key, preflights."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.in_process import InProcess, in_process

SAID = {"role": "user", "content": "a boat"}
pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH = "/v1/images/generations"
BODY = {"prompt": "a boat", "size": "256x256", "response_format": "url"}
MIB = 1024**2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home"), max_json_mib=1) as app:
        yield app


def without_key(running: InProcess, **headers: str) -> dict[str, str]:
    return {"Authorization": "", **headers}


async def test_the_list_of_models_may_end_in_a_slash(running: InProcess) -> None:
    plain, slash = [(await running.client.get(path)).json() for path in ("/v1/models", "/v1/models/")]
    assert slash == plain
    assert len(plain["data"]) == 11


@pytest.mark.parametrize("path", ["//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/"])
async def test_a_path_may_have_a_slash_too_many(running: InProcess, path: str) -> None:
    body = {"messages": [SAID]}
    assert (await running.client.post(f"http://test{path}", json=body)).status_code == 200
    gemini = f"http://test{path.replace('v1', 'v1beta').replace('chat/completions', 'models')}"
    assert "models" in (await running.client.get(gemini)).json()


@pytest.mark.parametrize("path", ["//admin/keys", "/admin//keys", "//metrics", "//console"])
async def test_what_a_proxy_may_guard_has_one_path(running: InProcess, path: str) -> None:
    assert (await running.client.get(f"http://test{path}")).status_code == 404


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/console", "/v1/models", "/v1/models/dall-e-3"])
async def test_checks_may_send_head(running: InProcess, path: str) -> None:
    status = (await running.client.get(path)).status_code
    assert (await running.client.head(path)).status_code == status != 405
    assert (await running.client.head("/")).status_code == 307


async def test_options_without_an_origin_says_what_a_url_takes(running: InProcess) -> None:
    answer = await running.client.options(PATH)
    assert (answer.status_code, answer.headers["allow"]) == (204, "POST")
    assert (await running.client.options("/v1/nothing")).status_code == 404


async def test_a_page_on_the_internet_may_ask_for_a_server_in_its_users_network(running: InProcess) -> None:
    headers = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Private-Network": "true",
    }
    answer = await running.client.options(PATH, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_compressed_body_is_read(running: InProcess, encoding: str) -> None:
    compress = gzip.compress if encoding == "gzip" else zlib.compress
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    body = json.dumps({**BODY, "user": "u" * 300_000}).encode()  # of several pieces
    answer = await running.client.post(PATH, content=compress(body), headers=headers)
    assert answer.status_code == 200, answer.text
    assert running.workers.jobs[-1].prompt == "a boat"


async def test_a_compressed_form_is_read(running: InProcess) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na boat\r\n--x--\r\n'
    headers = {"Content-Encoding": "gzip", "Content-Type": "multipart/form-data; boundary=x"}
    answer = await running.client.post("/v1/images/edits", content=gzip.compress(form), headers=headers)
    assert answer.json()["error"]["param"] == "image"  # and not the prompt


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (gzip.compress(bytes(64 * MIB)), 413, "larger than 1 MiB"),
        (gzip.compress(json.dumps(BODY).encode())[:-9], 400, "ends too early"),
        (gzip.compress(json.dumps(BODY).encode()) + b"more", 400, "something follows"),
        (b"\x1f\x8bnonsense", 400, "could not be decompressed"),
        (b"", 400, "ends too early"),
    ],
    ids=["bomb", "cut", "trailing", "nonsense", "empty"],
)
async def test_a_bad_compressed_body_is_refused_and_a_bomb_is_not_unpacked(
    running: InProcess, content: bytes, status: int, words: str
) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    refused = await running.client.post(PATH, content=content, headers=headers)
    assert (refused.status_code, words in refused.json()["error"]["message"]) == (status, True), refused.text
    assert running.services.running.bodies.in_flight_bytes == 0


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
async def test_another_encoding_is_named(running: InProcess, encoding: str) -> None:
    refused = await running.client.post(PATH, content=b"x", headers={"Content-Encoding": encoding})
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert f"'{encoding}'" in refused.json()["error"]["message"]
    assert refused.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize("name", ["api-key", "x-api-key", "X-API-Key"])
async def test_the_key_may_come_in_other_headers(running: InProcess, name: str) -> None:
    secret = running.client.headers["Authorization"].removeprefix("Bearer ")
    answer = await running.client.get("/v1/models", headers=without_key(running, **{name: secret}))
    assert answer.status_code == 200
    wrong = await running.client.get("/v1/models", headers=without_key(running, **{name: "sk-wrong"}))
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
    both = await running.client.get("/v1/models", headers={name: "sk-wrong"})
    assert both.status_code == 200  # the Authorization header decides


@pytest.mark.parametrize(
    "path", ["containers", "evals/eval_1", "skills", "chat/completions/chatcmpl-1", "images/variations", "live"]
)
async def test_endpoints_of_the_family_that_are_not_served_say_so(running: InProcess, path: str) -> None:
    refused = await running.client.get(f"/v1/{path}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unsupported_endpoint")


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("chat/completions", "ends in /v1"),
        ("images/generations", "ends in /v1"),
        ("v1/v1/messages", "Anthropic"),
        ("v1/image/generations", "/openapi.json"),
        ("nothing", "/openapi.json"),
    ],
)
async def test_a_wrong_base_url_is_told_apart_from_a_wrong_route(running: InProcess, path: str, advice: str) -> None:
    error = (await running.client.post(f"/{path}", json={})).json()["error"]
    assert error["code"] == "unknown_url"
    assert advice in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "meant"),
    [
        ("/v1/images/generations", {"model": "alpha-image-3-count", "prompt": "a boat"}, "alpha-image-2-count"),
        ("/v1/images/generations", {"model": "dalle-3", "prompt": "a boat"}, "dall-e-3"),
        (
            "/v1/chat/completions",
            {"model": "starter_chat", "messages": [{"role": "user", "content": "a"}]},
            "starter-chat",
        ),
    ],
)
async def test_a_mistyped_model_is_answered_with_the_one_that_is_meant(
    running: InProcess, path: str, body: dict[str, Any], meant: str
) -> None:
    error = (await running.client.post(path, json=body)).json()["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert f"Did you mean `{meant}`?" in error["message"]
    other = (await running.client.post(path, json={**body, "model": "zzz"})).json()["error"]
    assert "Did you mean" not in other["message"]


@pytest.mark.parametrize(
    "path", ["v1beta/files", "v1beta/cachedContents/x", "v1beta/models/a/b:embedContent", "v1/models/gemini:predict"]
)
async def test_googles_too_in_their_protocols_shape(running: InProcess, path: str) -> None:
    refused = await running.client.post(f"/{path}", json={})
    error = refused.json()["error"]
    assert (refused.status_code, error["status"], error["details"][0]["reason"]) == (
        404,
        "NOT_FOUND",
        "UNSUPPORTED_ENDPOINT",
    )
    assert "generateContent" in error["message"] or "/v1beta/models" in error["message"]


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [("stream=True", 404, "id"), ("stream=1", 404, "id"), ("stream=", 404, "id"), ("stream=perhaps", 400, "stream")],
)
async def test_a_flag_in_a_query_is_read_as_it_is_written(
    running: InProcess, query: str, status: int, param: str
) -> None:
    answer = await running.client.get(f"/v1/responses/resp_none?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_no_message_has_the_name_of_a_class(running: InProcess) -> None:
    answers: list[Any] = [await running.client.get("/v1/responses/resp_1?stream=%00")]
    assert all("Error" not in answer.json()["error"]["message"] for answer in answers)
