"""A cluster under Ray Serve, on a Ray of somebody else's: `serve run server.cluster:app`."""

import base64
import concurrent.futures
import json
import os
import signal
from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from tests.support.harness import until
from tests.support.ray_serve import ENGINE, RayServe, ray_serve

pytestmark = pytest.mark.nightly

PATH = "/v1/images/generations"
BODY = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count", "response_format": "url"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayServe]:
    with ray_serve(tmp_path_factory.mktemp("serve")) as cluster:
        cluster.serve("start", "--http-host", "127.0.0.1", "--http-port", str(cluster.port))
        cluster.serve("run", "--non-blocking", "server.cluster:app", f"config={cluster.config}")
        with cluster.client(cluster.key()) as client:
            until(lambda: client.get("/readyz").status_code == 200, interval_s=0.5)
        yield cluster


@pytest.fixture
def key(served: RayServe) -> str:
    return served.key()


@pytest.fixture
def sdk(served: RayServe, key: str) -> Iterator[OpenAI]:
    http = httpx.Client(trust_env=False)
    with OpenAI(base_url=f"{served.address}/v1", api_key=key, http_client=http, max_retries=0) as client:
        yield client


def test_openais_sdk_draws_and_reads_a_chat_as_it_comes(served: RayServe, sdk: OpenAI, key: str) -> None:
    image = sdk.images.generate(model="alpha-image-2-count", prompt="a star", response_format="b64_json")
    assert image.data
    assert base64.b64decode(image.data[0].b64_json or "").startswith(b"\x89PNG")
    chat = {"model": "starter-chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
    chunks = list(sdk.chat.completions.create(**chat, stream=True))
    assert len(chunks) > 2
    assert chunks[-1].choices[0].finish_reason
    assert served.count("entries", key) == 1


def test_a_stream_s_events_come_one_by_one(served: RayServe, key: str) -> None:
    body = BODY | {"stream": True, "partial_images": 1, "steps": 8, "size": "512x512", "response_format": "b64_json"}
    with served.client(key) as client, client.stream("POST", PATH, json=body) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        first = json.loads(next(lines)[6:])
        assert "partial_image" in first["type"]
        assert served.running(key)
        assert "completed" in json.loads([*lines][-1][6:])["type"]


def test_urls_headers_and_the_client_s_address_are_those_of_the_request(served: RayServe, key: str) -> None:
    with served.client(key) as client:
        answer = client.post(PATH, json=BODY)
        url = answer.json()["data"][0]["url"]
        assert url.startswith(f"{served.address}/cdn/")
        assert client.get(url).content.startswith(b"\x89PNG")
        assert client.get(url, headers={"Range": "bytes=0-3"}).content == b"\x89PNG"
        assert len(answer.headers.get_list("x-request-id")) == 1
        assert answer.headers["request-id"].startswith("req_")
        said = {"For": "198.51.100.1", "Proto": "https", "Host": "a.example", "Prefix": "/darkroom"}
        forwarded = client.post(PATH, json=BODY, headers={f"X-Forwarded-{name}": text for name, text in said.items()})
        assert forwarded.json()["data"][0]["url"].startswith("https://a.example/darkroom/cdn/")
        refused = client.post(PATH, json=BODY | {"size": "3x3"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "size")
        assert client.get("/v1/nothing").json()["error"]["code"] == "unknown_url"


def test_a_client_that_leaves_and_a_cancel_end_the_image(served: RayServe, key: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool, served.client(key) as client, served.held_up():
        call = pool.submit(client.post, PATH, json=BODY)
        until(lambda: len(served.running(key)) == 1)
        (job,) = served.running(key)
        assert client.post(f"/v1/images/jobs/{job}/cancel").json()["state"] == "cancelled"
        assert call.result().json()["error"]["code"] == "cancelled"
    with served.held_up():
        with served.client(key) as client, pytest.raises(httpx.TimeoutException):
            client.post(PATH, json=BODY, timeout=3)
        until(lambda: not served.running(key))
    assert served.count("entries", key) == 0


def test_a_replica_that_dies_in_mid_image_costs_its_calls_and_serve_makes_another(served: RayServe, key: str) -> None:
    before = served.replicas
    assert len(before) == 2
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        with served.held_up():
            calls = [pool.submit(draw, served, key, f"call-{number}") for number in range(6)]
            until(lambda: len(served.running(key)) == 6)
            os.kill(before[0].pid, signal.SIGKILL)
            until(lambda: any(call.done() for call in calls))
        answers = [call.result() for call in calls]
    assert {answer.status_code for answer in answers} == {200, 500}
    until(lambda: len(served.replicas) == 2, interval_s=0.5)
    for number in range(6):
        until(lambda: draw(served, key, f"call-{number}").status_code == 200, interval_s=1)  # noqa: B023
    assert served.count("entries", key) == 6


def test_an_engine_and_the_supervisor_are_made_again(served: RayServe, key: str) -> None:
    for name in ("ray::Supervisor", "ray::ServeReplica:default:Engines", ENGINE):
        until(lambda: served.processes(name), interval_s=0.5)  # noqa: B023  # the one before may have ended it, too
        (process, *_) = served.processes(name)
        count = len(served.processes(name))
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: len(served.processes(name)) == count and process not in served.processes(name), interval_s=0.5)  # noqa: B023
        until(lambda: draw(served, key, f"after {name}").status_code == 200, interval_s=1)  # noqa: B023
    assert served.count("entries", key) == 3


def test_an_app_that_is_deleted_ends_its_calls_then_gateways_and_then_engines(served: RayServe, key: str) -> None:
    assert served.processes(ENGINE)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with served.held_up():
            call = pool.submit(draw, served, key, "last")
            until(lambda: len(served.running(key)) == 1)
            served.python_code(
                "import ray; from ray import serve; ray.init(); serve.delete('default', _blocking=False)"
            )
        assert call.result().status_code == 200
    until(lambda: not served.replicas and not served.processes(ENGINE), interval_s=0.5)
    until(lambda: not served.processes("ray::Supervisor"), interval_s=0.5)  # it ends after the last engine
    served.serve("shutdown", "-y")


def draw(served: RayServe, key: str, once: str) -> httpx.Response:
    with served.client(key) as client:
        return client.post(PATH, json=BODY, headers={"Idempotency-Key": once})
