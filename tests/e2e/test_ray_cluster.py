"""Two servers and two image engines on two nodes of a Ray cluster, started as operators do: what is served, and what
the death of each part costs.

Workers are suspended while a test looks at what runs, so that nothing depends on how long an image takes.
"""

import base64
import concurrent.futures
import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.support.harness import free_port, suspended, until
from tests.support.ray_cluster import RayCluster, kill, new_cluster

pytestmark = pytest.mark.nightly

PATH = "/v1/images/generations"
BODY = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count", "response_format": "url"}
IMAGE_ENGINES = ("image-0-0", "image-1-0")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with new_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@contextlib.contextmanager
def held_up(cluster: RayCluster) -> Iterator[None]:
    """No image worker gets on."""
    with contextlib.ExitStack() as stack:
        for name in IMAGE_ENGINES:
            stack.enter_context(suspended(cluster.wait_engine(name)["worker_pid"]))
        yield


@contextlib.contextmanager
def in_background() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        yield pool


def post(cluster: RayCluster, server: int, key: str, once: str | None = None, **changes: Any) -> httpx.Response:
    headers = {"Idempotency-Key": once} if once is not None else {}
    with cluster.servers[server].http(key) as client:
        return client.post(PATH, json=BODY | changes, headers=headers)


def busy(cluster: RayCluster) -> list[str]:
    return [name for name in IMAGE_ENGINES if cluster.jobs(name)]


def test_both_servers_draw_edit_and_chat_on_the_shared_engines(cluster: RayCluster) -> None:
    key = cluster.key()
    image = io.BytesIO()
    Image.effect_noise((512, 512), 80).convert("RGB").save(image, "PNG")
    for server in (0, 1):
        assert post(cluster, server, key).status_code == 200
        with cluster.servers[server].http(key) as client:
            form = {
                "prompt": "a boat",
                "model": "alpha-image-2-count",
                "size": "256x256",
                "response_format": "b64_json",
            }
            edited = client.post("/v1/images/edits", data=form, files={"image": image.getvalue()})
            assert base64.b64decode(edited.json()["data"][0]["b64_json"])
            chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": True}
            with client.stream("POST", "/v1/chat/completions", json={"model": "starter-chat", **chat}) as stream:
                events = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"]
    assert cluster.count("entries", key) == 4


def test_calls_of_both_servers_are_divided_over_both_engines(cluster: RayCluster) -> None:
    key = cluster.key()
    with in_background() as pool:
        with held_up(cluster):
            calls = []
            while len(busy(cluster)) < 2:
                calls.append(pool.submit(post, cluster, len(calls) % 2, key))
                until(lambda: sum(cluster.jobs(name) for name in IMAGE_ENGINES) == len(calls))
                assert len(calls) < 10
        assert [call.result().status_code for call in calls] == [200] * len(calls)


def test_a_call_is_cancelled_through_the_other_server(cluster: RayCluster) -> None:
    key = cluster.key()
    with in_background() as pool, cluster.servers[1].http(key) as other:
        with held_up(cluster):
            call = pool.submit(post, cluster, 0, key)
            until(lambda: len(busy(cluster)) == 1)
            (job,) = cluster.running(key)
            assert other.post(f"/v1/images/jobs/{job}/cancel").json()["state"] == "cancelled"
        assert call.result().json()["error"]["code"] == "cancelled"
    until(lambda: not busy(cluster))
    assert cluster.count("entries", key) == 0


def test_an_engine_that_is_killed_fails_its_image_and_a_retry_is_charged_once(cluster: RayCluster) -> None:
    key = cluster.key()
    with in_background() as pool:
        with held_up(cluster):
            call = pool.submit(post, cluster, 0, key, "engine")
            until(lambda: len(busy(cluster)) == 1)
            (name,) = busy(cluster)
            kill(cluster.wait_engine(name)["pid"])
            answer = call.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "worker_died")
    assert post(cluster, 1, key, "engine").status_code == 200
    assert cluster.count("entries", key) == 1
    cluster.wait_engine(name)


def test_the_jobs_of_a_server_that_is_killed_are_dropped_and_it_comes_back(cluster: RayCluster) -> None:
    key, server = cluster.key(), cluster.servers[1]
    with in_background() as pool:
        with held_up(cluster):
            call = pool.submit(post, cluster, 1, key, "server")
            until(lambda: len(busy(cluster)) == 1)
            (name,) = busy(cluster)
            server.kill()
            with pytest.raises(httpx.HTTPError):
                call.result()
            until(lambda: cluster.engine(name)["servers_given_up"] == 1, interval_s=0.2)
        until(lambda: not busy(cluster))
    assert cluster.count("entries", key) == 0
    server.start()
    cluster.wait_engine(name)
    until(lambda: post(cluster, 0, key, "server").status_code == 200, interval_s=1)
    assert cluster.count("entries", key) == 1


def test_a_node_that_dies_fails_its_images_and_serves_again_when_it_is_back(cluster: RayCluster) -> None:
    key = cluster.key()
    cluster.wait_engine("image-1-0")
    with in_background() as pool:
        with held_up(cluster):
            calls = {}
            while "image-1-0" not in busy(cluster):
                once = f"node-{len(calls)}"
                calls[once] = pool.submit(post, cluster, 0, key, once)
                until(lambda: sum(cluster.jobs(name) for name in IMAGE_ENGINES) == len(calls))
            cluster.b.kill()
            until(lambda: any(call.done() for call in calls.values()))
        answers = {once: call.result() for once, call in calls.items()}
    lost = [once for once, answer in answers.items() if answer.status_code != 200]
    assert [answers[once].json()["error"]["code"] for once in lost] == ["worker_died"]
    assert post(cluster, 0, key, lost[0]).status_code == 200
    assert cluster.count("entries", key) == len(calls)
    cluster.join()
    cluster.wait_engine("image-1-0")
    with in_background() as pool:
        with suspended(cluster.wait_engine("image-0-0")["worker_pid"]):
            others = [pool.submit(post, cluster, 0, key) for _ in range(4)]
            until(lambda: any(call.done() for call in others))
        assert {call.result().status_code for call in others} == {200}


def test_a_swap_whose_engine_dies_changes_nothing(cluster: RayCluster) -> None:
    swap = {"model": BODY["model"], "checkpoint": "other"}
    cluster.wait_engine("image-1-0")
    server = cluster.servers[0]
    with in_background() as pool, server.http(server.admin_key) as client:
        with suspended(cluster.wait_engine("image-1-0")["worker_pid"]):
            change = pool.submit(client.post, "/admin/swap", json=swap)
            until(lambda: "other" in _cached_checkpoints(client, "image-0-0"), interval_s=0.5)
            kill(cluster.wait_engine("image-1-0")["pid"])
            answer = change.result()
        assert answer.status_code == 409
        assert "Nothing has changed" in answer.json()["error"]["message"]
        assert post(cluster, 0, cluster.key()).status_code == 200
        cluster.wait_engine("image-1-0")
        again = client.post("/admin/swap", json=swap)
        assert again.status_code == 200, again.text
        assert client.post("/admin/undo").status_code == 200


def test_a_node_is_drained_leaves_and_comes_back(cluster: RayCluster) -> None:
    key, server = cluster.key(), cluster.servers[0]
    cluster.wait_engine("image-1-0")
    refused = server.darkroom("cluster", "drain", "a")
    assert (refused.returncode, "is Ray's head" in refused.stderr) == (1, True)
    with in_background() as pool:
        with held_up(cluster):
            calls = []
            while len(busy(cluster)) < 2:
                calls.append(pool.submit(post, cluster, 0, key))
                until(lambda: sum(cluster.jobs(name) for name in IMAGE_ENGINES) == len(calls))
            draining = pool.submit(server.darkroom, "cluster", "drain", "b")
            until(lambda: cluster.engine("image-1-0").get("state") == "leaving", interval_s=0.2)
        drained = draining.result()
        assert {call.result().status_code for call in calls} == {200}
    assert drained.returncode == 0, drained.stderr
    until(lambda: nodes(cluster) == ["a"], interval_s=0.2)  # Ray has ended there
    status = json.loads(server.darkroom("cluster", "status", "--json").stdout)
    assert [node["name"] for node in status["nodes"]] == ["a"]
    states = {engine["name"]: (engine["state"], engine["node"]) for engine in status["engines"]}
    assert states["image-1-0"] == ("waiting for a node", None)
    assert states["image-0-0"] == ("ready", "a")
    assert [each["alive"] for each in status["servers"]] == [True, True]
    assert "waiting for a node" in server.darkroom("cluster", "status").stdout
    assert post(cluster, 0, key).status_code == 200
    cluster.b.kill()
    cluster.join()
    cluster.wait_engine("image-1-0")


def test_a_node_on_which_a_server_runs_is_not_drained(cluster: RayCluster) -> None:
    asked, here = cluster.servers
    (address,) = {node["NodeManagerAddress"] for node in cluster.ray.nodes() if node["Alive"]}
    elsewhere, url = here.settings, f"http://{address}:{free_port()}"
    here.stop()
    here.settings = {**elsewhere, "gateway_url": url}
    here.start()
    refused = asked.darkroom("cluster", "drain", "b")
    assert (refused.returncode, f"The server {url} runs on b" in refused.stderr) == (1, True), refused.stderr
    assert sorted(nodes(cluster)) == ["a", "b"]
    cluster.wait_engine("image-1-0")
    here.stop()
    here.settings = elsewhere
    here.start()


def test_a_node_that_differs_is_not_used_until_it_is_right(cluster: RayCluster) -> None:
    """What else it may differ in: tests/unit/cluster/test_node_properties.py."""
    cluster.wait_engine("image-1-0")
    server, weights = cluster.servers[0], cluster.servers[0].weights
    cluster.b.kill()
    cluster.join(DARKROOM_WEIGHTS=str(weights.parent))
    until(lambda: f"DARKROOM_WEIGHTS: {weights.parent} here, {weights} there" in server.log, interval_s=0.2)
    cluster.b.kill()
    file = next((weights / "tiny").rglob("*.safetensors"))
    known = file.read_bytes()
    file.write_bytes(known[:-1] + b"\0")
    cluster.join()
    until(lambda: "the weights of tiny are not those of the other servers" in server.log, interval_s=0.2)
    assert cluster.engine("image-1-0")["servers"] == 0
    assert post(cluster, 0, cluster.key()).status_code == 200
    file.write_bytes(known)
    cluster.wait_engine("image-1-0")


def nodes(cluster: RayCluster) -> list[str]:
    return [node["NodeName"] for node in cluster.ray.nodes() if node["Alive"]]


def _cached_checkpoints(client: httpx.Client, name: str) -> list[str]:
    workers = client.get("/readyz").json()["image"]
    return [each["name"] for worker in workers if worker["name"] == name for each in worker["checkpoints"]]
