"""Images out of chats: /v1/chat/completions and Gemini's generateContent, raw and by Google's SDK."""

import base64
import io
import json
from typing import Any

import pytest
from PIL import Image

from tests.e2e.test_chat_by_other_clients import PYTHON, SCRIPT, needs_python_clients, run
from tests.support.harness import Server, assert_clean, charges

PATH = "/v1/chat/completions"
ALPHA = "alpha-image-2-count"
DRAW: Any = {
    "model": ALPHA,
    "messages": [{"role": "user", "content": "a red boat"}],
    "size": "256x256",
    "quality": "low",
    "seed": 7,
}


def pixels(data_uri: str) -> bytes:
    head, _, data = data_uri.partition(",")
    assert head == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert image.size == (256, 256)
        return image.tobytes()


def test_an_image_model_draws_the_last_message(responses_server: Server) -> None:
    before = charges(responses_server)
    with responses_server.http() as client:
        answer = client.post(PATH, json={**DRAW, "temperature": 0.5})
        expected = client.post("/v1/images/generations", json={**DRAW, "prompt": "a red boat"}).json()
        message = answer.json()["choices"][0]["message"]
        (image,) = message["images"]
        assert (message["content"], message["role"]) == ("", "assistant")
        assert image["image_url"]["url"].endswith(expected["data"][0]["b64_json"])
        assert answer.json()["usage"]["completion_tokens"] == expected["usage"]["output_tokens"]
        assert answer.headers["x-darkroom-ignored"] == "temperature"
        assert client.get(f"/v1/images/jobs/{answer.headers['x-darkroom-job']}").json()["state"] == "succeeded"
        redrawn = [*DRAW["messages"], message, {"role": "user", "content": "make it blue"}]
        second = client.post(PATH, json={**DRAW, "messages": redrawn}).json()
    assert second["usage"]["prompt_tokens"] > answer.json()["usage"]["prompt_tokens"] + 200  # of the reference
    assert pixels(second["choices"][0]["message"]["images"][0]["image_url"]["url"]) != pixels(image["image_url"]["url"])
    assert charges(responses_server) == before + 3


def test_images_are_streamed_and_a_retry_is_charged_once(responses_server: Server) -> None:
    before = charges(responses_server)
    stream = responses_server.openai().chat.completions.create(
        **{key: DRAW[key] for key in ("model", "messages", "seed")},
        n=2,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"size": "256x256", "quality": "low", "modalities": ["image", "text"]},
        extra_headers={"Idempotency-Key": "pictured"},
    )
    chunks = list(stream)
    deltas: Any = [(choice.index, choice.delta) for chunk in chunks for choice in chunk.choices]
    found = [(index, image) for index, delta in deltas for image in getattr(delta, "images", None) or ()]
    assert [index for index, _ in found] == [0, 1]
    assert all(pixels(image["image_url"]["url"]) for _, image in found)
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["stop", "stop"]
    assert chunks[-1].usage is not None
    body = {**DRAW, "n": 2, "stream": True, "modalities": ["image", "text"]}
    with responses_server.http() as client:
        again = client.post(PATH, json=body, headers={"Idempotency-Key": "pictured"})
    assert again.headers["idempotency-replayed"] == "true"
    assert again.text.endswith("data: [DONE]\n\n")
    assert charges(responses_server) == before + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_model_draws_when_it_is_asked_for_images(responses_server: Server, stream: bool) -> None:
    before = charges(responses_server)
    sent: Any = {**DRAW, "model": "starter-chat", "modalities": ["image", "text"], "max_tokens": 16, "stream": stream}
    with responses_server.http() as client:
        answer = client.post(PATH, json=sent)
    assert answer.status_code == 200, answer.text
    if stream:
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        images = [one for line in lines for c in json.loads(line)["choices"] for one in c["delta"].get("images", ())]
    else:
        images = answer.json()["choices"][0]["message"]["images"]
    assert pixels(images[0]["image_url"]["url"])
    assert charges(responses_server) == before + len(images)
    assert "quality" in answer.headers["x-darkroom-ignored"]


def test_what_can_not_be_drawn_is_refused_as_on_the_image_routes(responses_server: Server) -> None:
    before = charges(responses_server)
    chat_only = responses_server.new_key("chats only", groups=["chat"])
    for change, status, param in (
        ({"size": "17x17"}, 400, "size"),
        ({"image_config": {"aspect_ratio": "7:5"}}, 400, "image_config.aspect_ratio"),
        ({"image_config": {"image_size": "4K"}, "model": "beta-2.5-flash-image-count"}, 400, "image_config.image_size"),
        ({"messages": [{"role": "user", "content": " "}]}, 400, "messages"),
        ({"n": 99}, 400, "n"),
    ):
        with responses_server.http() as client:
            answer = client.post(PATH, json={**DRAW, **change})
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    with responses_server.http(chat_only) as client:
        assert client.post(PATH, json=DRAW).status_code == 403
    assert charges(responses_server) == before
    assert_clean(responses_server)


@needs_python_clients
def test_googles_sdk(responses_server: Server) -> None:
    before = charges(responses_server)
    results = run(responses_server, PYTHON, SCRIPT, "gemini", "gemini-2.5-flash-image")
    assert results["drawn"] == ["image/png", [1024, 1024], "STOP"]
    assert results["edited"] == results["continued"] == ["image/png", [1024, 1024], "STOP"]
    assert results["streamed"] == 1
    assert results["image_tokens"] > 0
    assert charges(responses_server) == before + 4
    assert results["text"] == results["text_streamed"]
    assert results["counted"] == results["prompt_tokens"] > 0
    assert [(name, list(arguments)) for name, arguments in results["calls"]] == [("look", ["city"])]
    assert "models/beta-3-pro-image-count" in results["models"]
    assert results["model"] == "models/beta-2.5-flash-image-count"
    assert results["unknown"] == ["ClientError", 404, "NOT_FOUND"]
    assert results["size"] == ["ClientError", 400, "INVALID_ARGUMENT"]
    assert results["key"] == ["ClientError", 401, "UNAUTHENTICATED"]
