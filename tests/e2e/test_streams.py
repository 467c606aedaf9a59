"""Streams of the image routes, byte by byte and through OpenAI's SDK."""

import base64
import io
import json
import os
import signal
import threading
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from tests.e2e.test_images_by_sdk import SMALL, image
from tests.support.harness import PLAIN, MakeServer, Server, assert_clean, charges, until

SLOW = {"prompt": "a city", "size": "1024x1024", "steps": 200, "model": "alpha-image-2-count", "stream": True}


def events(body: str) -> list[tuple[str, dict[str, Any]]]:
    """Every event of a stream. Asserts its framing."""
    assert "\r" not in body
    assert body.endswith("\n\n")
    parsed = []
    for block in body[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        parsed.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return parsed


def test_the_sdk_iterates_a_generation(server: Server) -> None:
    stream = server.openai().images.generate(prompt="a red boat", size=SMALL, stream=True, quality="low")
    *_, last = list(stream)
    assert last.type == "image_generation.completed"
    assert Image.open(io.BytesIO(base64.b64decode(last.b64_json))).size == (256, 256)
    assert (last.size, last.quality, last.output_format, last.background) == (SMALL, "low", "png", "opaque")
    assert last.usage.total_tokens == last.usage.input_tokens + last.usage.output_tokens


def test_the_sdk_iterates_an_edit(server: Server) -> None:
    stream = server.openai().images.edit(
        model="beta-3-pro-image-count", prompt="make it blue", image=image(320, 256), stream=True
    )
    *_, last = list(stream)
    assert last.type == "image_edit.completed"
    assert last.quality == "auto"
    assert Image.open(io.BytesIO(base64.b64decode(last.b64_json))).size == (320, 256)


def test_a_call_in_the_background_shows_its_newest_preview(server: Server) -> None:
    """Of each image as it is drawn; then they are cancelled, long before their end."""
    body = {**SLOW, "stream": False, "size": SMALL, "n": 4, "background": True, "partial_images": 3}
    with server.http() as client:
        job = client.post("/v1/images/generations", json=body).json()
        route = f"/v1/images/jobs/{job['id']}"
        state: dict[str, Any] = {}

        def is_seen() -> bool:
            state.update(client.get(f"{route}?previews=true").json())
            return bool(state["previews"])

        until(is_seen)
        preview = state["previews"][0]
        shown = Image.open(io.BytesIO(base64.b64decode(preview["b64_json"])))
        assert (state["state"], shown.format, shown.size) == ("running", "PNG", (256, 256))
        assert preview["image_index"] in range(4)
        assert state["progress"]["steps"] == 4 * 200
        assert "previews" not in client.get(route).json()
        assert client.post(f"{route}/cancel").json()["state"] == "cancelled"


def test_n_images_are_n_completed_events_whose_usage_adds_up(server: Server) -> None:
    body = {"prompt": "a star", "size": SMALL, "n": 2, "seed": 5, "model": "alpha-image-2-count"}
    with server.http() as client:
        answer = client.post("/v1/images/generations", json={**body, "stream": True})
        unstreamed = client.post("/v1/images/generations", json=body).json()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-darkroom-job"].startswith("img_")
    completed = [data for name, data in events(answer.text) if name == "image_generation.completed"]
    assert [(data["type"], data["image_index"], data["seed"]) for data in completed] == [
        ("image_generation.completed", 0, 5),
        ("image_generation.completed", 1, 6),
    ]
    for count in ("input_tokens", "output_tokens", "total_tokens"):
        assert sum(data["usage"][count] for data in completed) == unstreamed["usage"][count]
    assert httpx.get(completed[1]["url"], timeout=60, trust_env=False).content == base64.b64decode(
        completed[1]["b64_json"]
    )


@pytest.mark.parametrize(
    ("fields", "status"), [({"size": "large"}, 400), ({"model": "gamma"}, 404), ({"partial_images": 4}, 400)]
)
def test_an_invalid_call_is_refused_before_the_stream_begins(
    server: Server, fields: dict[str, Any], status: int
) -> None:
    with server.http() as client:
        answer = client.post("/v1/images/generations", json={"prompt": "x", "stream": True, **fields})
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_failure_within_a_stream_is_an_error_that_the_sdk_raises(make_server: MakeServer) -> None:
    server = make_server(PLAIN, keepalive_s="0.2")
    comments, received = b": keep-alive\n\n" * 2, b""

    def kill_the_worker() -> None:
        until(lambda: server.readiness()["jobs"] == 1)
        os.kill(server.readiness()["worker_pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill_the_worker)
    killer.start()
    with pytest.raises(openai.APIError, match="nothing was charged") as raised:
        list(server.openai().images.generate(prompt="a city", stream=True, extra_body={"steps": 200}))
    killer.join()
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["code"] == "worker_died"
    with server.http() as client, client.stream("POST", "/v1/images/generations", json=SLOW) as answer:
        assert answer.status_code == 200
        for chunk in answer.iter_raw():
            received += chunk
            if len(received) >= len(comments):
                break
    assert received.startswith(comments)  # while the image is generated
    until(lambda: server.readiness()["jobs"] == 0)
    assert charges(server) == 0
    assert_clean(server)
