"""A running server does what its /openapi.json says: every example is sent, and every answer is held against its
schema. What a model says does not matter here."""

import contextlib
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from server.dialects.anthropic import examples as of_anthropic
from server.dialects.gemini import examples as of_gemini
from server.http import examples
from server.http.examples import Examples
from tests.support.harness import Server
from tests.support.openapi import Json, check, operations, response

SLEEPS = {"/admin/sleep": examples.SLEEP, "/admin/wake": examples.WAKE}  # answered in test_sleep.py
BODIES: dict[str, Examples] = {
    "/admin/keys": examples.CREATE_KEY,
    "/admin/keys/{key}": examples.CHANGE_KEY,
    "/admin/keys/{key}/rotate": examples.ROTATE_KEY,
    "/admin/teams": examples.CREATE_TEAM,
    "/admin/teams/{team}": examples.CHANGE_TEAM,
    "/admin/moderation/test": examples.MODERATION_TEST,
    "/admin/operators": examples.CREATE_OPERATOR,
    "/admin/checkpoints/inspect": examples.INSPECT,
    "/admin/checkpoints/add": examples.ADD,
    "/admin/checkpoints/verify": examples.VERIFY,
    "/admin/checkpoints/remove": examples.REMOVE,
    "/admin/checkpoints/proof": examples.GRID,
    "/admin/swap": examples.SWAP,
    "/v1/batches": examples.BATCH,
    "/v1/moderations": examples.MODERATION,
    "/v1/chat/completions": examples.CHAT,
    "/v1/images/edits": examples.EDIT,
    "/v1/images/generations": examples.GENERATION,
    "/v1/images/upscale": examples.UPSCALE,
    "/v1/messages": of_anthropic.MESSAGES,
    "/v1/messages/count_tokens": of_anthropic.COUNT,
    "/v1beta/models/{model}:countTokens": of_gemini.COUNT_TOKENS,
    "/v1beta/models/{model}:generateContent": of_gemini.GENERATE,
    "/v1beta/models/{model}:streamGenerateContent": of_gemini.GENERATE,
    "/v1/conversations": examples.CONVERSATION,
    "/v1/conversations/{conversation_id}": examples.CHANGE_CONVERSATION,
    "/v1/darkroom/responses/{response_id}": examples.RESPONSE_TITLE,
    "/v1/conversations/{conversation_id}/items": examples.CONVERSATION_ITEMS,
    "/v1/responses": examples.RESPONSE,
    "/v1/responses/compact": examples.COMPACT,
    "/v1/responses/input_tokens": examples.RESPONSE,
}
ADMIN_LISTS = [
    f"/admin/{name}"
    for name in (
        "audit", "calls", "checkpoints", "checkpoints/adapters", "doctor", "jobs", "keys", "ledger", "moderation",
        "operators", "refusals", "status", "swaps", "teams", "usage",
    )
]  # fmt: skip
SHORT = {"input": "Hello", "max_output_tokens": 16}
OWN_LISTS = [f"/v1/darkroom/{name}" for name in ("calls", "me", "responses", "results", "usage")]
CHAT: Json = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
DRAW: Json = {"prompt": "a red boat", "size": "256x256", "quality": "low"}
REFUSED: list[tuple[str, Json, dict[str, str], int]] = [
    ("/v1/chat/completions", {**CHAT, "model": "gamma"}, {}, 404),
    ("/v1/chat/completions", {**CHAT, "temperature": "hot"}, {}, 400),
    ("/v1/images/generations", {**DRAW, "model": "gamma"}, {}, 404),
    ("/v1/images/generations", {**DRAW, "n": 0}, {}, 400),
    ("/v1/images/generations", DRAW, {"Idempotency-Key": ""}, 400),
    ("/v1/images/edits", DRAW, {}, 415),
    ("/v1/messages", {**CHAT, "model": "gamma"}, {}, 404),
    ("/v1/messages", {"messages": []}, {}, 400),
    ("/v1/messages/count_tokens", {**CHAT, "model": "gamma"}, {}, 404),
    ("/v1beta/models/gamma:generateContent", {"contents": [{"parts": [{"text": "Hello"}]}]}, {}, 404),
    ("/v1beta/models/starter-chat:streamGenerateContent", {"contents": []}, {}, 400),
    ("/v1/responses", {"input": "Hello", "model": "gamma"}, {}, 404),
    ("/v1/responses", {"input": 7}, {}, 400),
    ("/v1/responses/input_tokens", {"input": "Hello", "model": "gamma"}, {}, 404),
    ("/v1/responses/compact", {"input": "Hello"}, {}, 400),
    ("/v1/responses/compact", {"model": "starter-chat"}, {}, 400),
    ("/v1/responses/resp_0/cancel", {}, {}, 404),
    ("/admin/checkpoints/inspect", {"checkpoint": "none"}, {}, 404),
    ("/admin/checkpoints/add", {"checkpoint": "starter-chat"}, {}, 400),
    ("/admin/checkpoints/proof", {"candidates": [{"name": "none"}], "prompts": ["a boat"]}, {}, 404),
    ("/admin/swap", {"model": "gamma", "checkpoint": "none"}, {}, 404),
    ("/admin/swap", {"model": "alpha-image-2-count", "checkpoint": "none"}, {}, 400),
]


# What an example needs to be done, or undone, before it
BEFORE = {
    "/admin/checkpoints/add": "/admin/checkpoints/remove",
    "/admin/checkpoints/remove": "/admin/checkpoints/add",
    "/admin/checkpoints/verify": "/admin/checkpoints/add",
}


@pytest.fixture(scope="module")
def document(responses_server: Server) -> Json:
    found: Json = httpx.get(f"{responses_server.base}/openapi.json", timeout=60, trust_env=False).json()
    return found


def client(server: Server, path: str = "/v1", key: str | None = None) -> httpx.Client:
    """With the key that this path needs."""
    return server.http(server.admin_key if path.startswith("/admin") else key)


def operation_of(document: Json, method: str, path: str) -> Json:
    """The operation whose path has these parts, or parameters in their places."""
    parts = path.split("/")
    for known, template, operation in operations(document):
        patterns = [re.sub(r"\\{.*\\}", "[^:]*", re.escape(part)) for part in template.split("/")]
        pairs = list(zip(patterns, parts, strict=False))
        if known == method and len(patterns) == len(parts) and all(re.fullmatch(*pair) for pair in pairs):
            return operation
    raise AssertionError(f"{method} {path} is not described")


def check_answer(document: Json, method: str, path: str, answer: httpx.Response) -> Json:
    """The answer has a documented status, and matches the schema of its content type. Returns what is described."""
    operation = operation_of(document, method, path)
    assert str(answer.status_code) in operation["responses"], answer.text
    described = response(document, operation, answer.status_code)
    media_type = answer.headers["content-type"].partition(";")[0]
    content = described["content"].get(media_type) or described["content"]["image/*"]
    if media_type == "application/json":
        check(document, content["schema"], answer.json(), exact=True)
    if media_type == "text/event-stream":
        for event in events(answer.text):
            check(document, content["schema"], event, exact=True)
    assert "x-request-id" in answer.headers
    return described


def events(body: str) -> Iterator[Json]:
    """Each event's data. One that has a name has it as its type too."""
    for block in body.strip().split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        if fields and fields["data"] != "[DONE]":
            data: Json = json.loads(fields["data"])
            assert fields.get("event") in {None, data.get("type"), "error"}
            yield data


def upload(value: Json) -> dict[str, Any]:
    """A form's example as httpx sends it, with a real image in place of each file."""
    image = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(image, "PNG")
    texts = {name: str(text).lower() if isinstance(text, bool) else text for name, text in value.items()}
    files = [("image", ("picture.png", image.getvalue(), "image/png")) for _ in texts.pop("image")]
    return {"data": texts, "files": files}


def takes_body(operation: Json) -> bool:
    return "requestBody" in operation


def test_the_document_has_these_examples(document: Json) -> None:
    described = {
        path: {
            name: example["value"]
            for content in body["content"].values()
            for name, example in content["examples"].items()
        }
        for _, path, operation in operations(document)
        if (body := operation.get("requestBody"))
    }
    assert described == BODIES | SLEEPS


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, named in BODIES.items() for name in named])
def test_an_example_is_answered_as_described(responses_server: Server, document: Json, path: str, name: str) -> None:
    value = BODIES[path][name]
    sent = upload(value) if path == "/v1/images/edits" else {"json": value}
    method = next(method for method, each, operation in operations(document) if each == path and takes_body(operation))
    with client(responses_server, path) as http:
        key = http.post("/admin/keys", json={"name": name}).json()["id"] if "{key}" in path else ""
        team = http.post("/admin/teams", json={"name": name}).json()["id"] if "{team}" in path else ""
        talk = http.post("/v1/conversations", json={}).json()["id"] if "{conversation_id}" in path else ""
        turn = http.post("/v1/responses", json=SHORT).json()["id"] if "{response_id}" in path else ""
        names = {"{model}": "gemini-2.5-flash-image", "{key}": key, "{team}": team}
        names |= {"{conversation_id}": talk, "{response_id}": turn}
        url = re.sub(r"\{\w+\}", lambda found: names[found[0]], path)
        for body in BODIES[BEFORE[path]].values() if path in BEFORE else ():
            http.post(BEFORE[path], json=body)
        answer = http.request(method, url, **sent)
    submitted = path.startswith("/v1/images/") and value.get("background") is True
    assert answer.status_code == (202 if submitted else 200), answer.text
    described = check_answer(document, method, path, answer)
    streams = value.get("stream", False) and path != "/v1/responses/input_tokens"
    media_type = "image/png" if path.endswith("/proof") else "application/json"
    assert answer.headers["content-type"].startswith("text/event-stream" if streams else media_type)
    promised = {each.lower() for each in described["headers"]} - {
        "x-darkroom-ignored",
        "x-darkroom-truncated",
        "x-darkroom-wake-s",
        "idempotency-replayed",
    }
    assert promised <= answer.headers.keys()
    assert "x-darkroom-ignored" not in answer.headers


def test_images_jobs_and_models_are_shown_as_described(responses_server: Server, document: Json) -> None:
    with client(responses_server) as http:
        drawn = http.post("/v1/images/generations", json=DRAW)
        image = drawn.json()["data"][0]["url"].removeprefix(responses_server.base)
        job = f"/v1/images/jobs/{drawn.headers['x-darkroom-job']}"
        names = ("", "/starter-chat", "/gpt-image-1")
        models = [f"{base}{name}" for base in ("/v1/models", "/v1beta/models") for name in names]
        jobs = (job, f"{job}?previews=true", "/v1/images/jobs?state=succeeded&limit=2")
        for path in (*jobs, *models, image):
            answer = http.get(path)
            assert answer.status_code == 200, answer.text
            check_answer(document, "GET", path.partition("?")[0], answer)
        check_answer(document, "POST", f"{job}/cancel", http.post(f"{job}/cancel"))
        part = http.get(image, headers={"Range": "bytes=0-9"})
        assert part.status_code == 206
        check_answer(document, "GET", image, part)
        check_answer(document, "HEAD", image, http.head(image))
        refused = [http.get(image, headers={"Range": given}) for given in ("bytes=999999999-", "words=1-2")]
        assert [answer.status_code for answer in refused] == [416, 400]
        check_answer(document, "GET", image, refused[1])
        for width, status in (("160", 200), ("161", 400)):
            small = http.get(image, params={"w": width})
            assert small.status_code == status
            check_answer(document, "GET", image, small)


def test_a_response_is_read_cancelled_and_deleted_as_described(responses_server: Server, document: Json) -> None:
    sent = {**examples.RESPONSE["conversation with a function"], "background": True}
    with client(responses_server) as http:
        path = f"/v1/responses/{http.post('/v1/responses', json=sent).json()['id']}"
        while http.get(path).json()["status"] in {"queued", "in_progress"}:
            time.sleep(0.05)
        for method, url in (
            ("GET", path),
            ("GET", f"{path}?stream=true&starting_after=0"),
            ("GET", f"{path}/input_items?limit=2&order=asc"),
            ("GET", f"{path}/input_items"),
            ("POST", f"{path}/cancel"),
            ("DELETE", path),
        ):
            answer = http.request(method, url)
            assert answer.status_code == 200, answer.text
            check_answer(document, method, url.partition("?")[0], answer)
        check_answer(document, "GET", path, http.get(path, params={"stream": "perhaps"}))


def test_the_operators_routes_answer_as_described(responses_server: Server, document: Json) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        answer = httpx.get(responses_server.base + path, timeout=60, trust_env=False)
        assert answer.status_code == 200
        check_answer(document, "GET", path, answer)
    with client(responses_server, "/admin") as http:
        check_answer(document, "GET", "/readyz", http.get("/readyz"))
        check_answer(document, "POST", "/admin/reload", http.post("/admin/reload"))
        for path in ADMIN_LISTS:
            for query in ("", "?format=csv"):
                check_answer(document, "GET", path, http.get(path + query))
        for path in ("/admin/ledger/check", "/admin/backup"):
            check_answer(document, "POST", path, http.post(path))
    with client(responses_server) as http:
        for path in OWN_LISTS:
            check_answer(document, "GET", path, http.get(path))


def test_a_server_that_is_not_ready_says_so_as_described(
    tmp_path: Path, tiny: tuple[Path, Path], document: Json
) -> None:
    server = Server(tmp_path, *tiny).start(wait=False)
    try:
        answer = first_readiness(server)
    finally:
        server.kill()
    check_answer(document, "GET", "/readyz", answer)
    assert (answer.status_code == 503) == ("retry-after" in answer.headers)


def first_readiness(server: Server) -> httpx.Response:
    while True:
        with contextlib.suppress(httpx.ConnectError):
            return httpx.get(f"{server.base}/readyz", timeout=60, trust_env=False)
        assert server.process is not None
        assert server.process.poll() is None, server.log
        time.sleep(0.02)


def test_every_route_that_needs_a_key_says_so_as_described(responses_server: Server, document: Json) -> None:
    for method, path, operation in operations(document):
        url = responses_server.base + path.replace("{", "").replace("}", "")
        answer = httpx.request(method, url, timeout=60, trust_env=False)
        if not operation["security"]:
            assert answer.status_code != 401
            continue
        assert answer.status_code == 401, path
        if method != "HEAD":
            check_answer(document, method, path, answer)


@pytest.mark.parametrize(("path", "body", "headers", "status"), REFUSED)
def test_what_is_refused_is_refused_as_described(
    responses_server: Server, document: Json, path: str, body: Json, headers: dict[str, str], status: int
) -> None:
    with client(responses_server, path) as http:
        answer = http.post(path, json=body, headers=headers)
    assert answer.status_code == status, answer.text
    check_answer(document, "POST", path, answer)


def test_keys_that_may_not_or_cannot_pay_are_refused_as_described(responses_server: Server, document: Json) -> None:
    other = responses_server.new_key("beta only", groups=["beta-image-per-call"])
    poor = responses_server.new_key("poor", budget="0")
    path = "/v1/images/generations"
    for key, status in ((other, 403), (poor, 429)):
        with client(responses_server, key=key) as http:
            answer = http.post(path, json=DRAW)
        assert answer.status_code == status, answer.text
        check_answer(document, "POST", path, answer)


def test_an_idempotency_key_is_described_and_belongs_to_one_body(responses_server: Server, document: Json) -> None:
    path, headers = "/v1/images/generations", {"Idempotency-Key": "openapi-1"}
    with client(responses_server) as http:
        first, again = (http.post(path, json=DRAW, headers=headers) for _ in range(2))
        other = http.post(path, json={**DRAW, "prompt": "a blue boat"}, headers=headers)
    assert (first.status_code, again.status_code, other.status_code) == (200, 200, 422)
    assert again.headers["idempotency-replayed"] == "true"
    for answer in (first, again, other):
        check_answer(document, "POST", path, answer)
