"""Workers give the device back and take it again: over HTTP, by the command line, and by themselves when idle.

On a CPU the device's memory is the host's, so what another process sees of it is the workers' resident memory.
"""

import concurrent.futures
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.harness import Server, assert_clean, charges, suspended, until
from tests.support.tiny_checkpoints import make_sd
from tests.support.tiny_classifiers import make_text_classifier
from tests.support.tiny_server import write_tiny_files

MODEL = "alpha-image-2-count"
WORKERS = {"image", "chat", "classify"}
POLICY = """
[[classifiers]]
reads      = "prompts"
checkpoint = "{blades}"
[classifiers.labels.blade]
policy    = "no-blades"
category  = "violence"
threshold = 0.5
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An image worker, a chat worker and a classifier's."""
    folder = tmp_path_factory.mktemp("sleep")
    weights, configs = write_tiny_files(folder)
    make_sd(weights / "other")
    policy = folder / "policy.toml"
    policy.write_text(POLICY.format(blades=make_text_classifier(folder / "blades")))
    running = Server(folder / "home", weights, configs, {"moderation": str(policy)}).start()
    yield running
    running.kill()


def admin(server: Server, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    with server.http(server.admin_key) as client:
        return client.post(f"/admin/{path}", json=body)


def sleep(server: Server, **body: Any) -> dict[str, dict[str, Any]]:
    answer = admin(server, "sleep", body)
    assert answer.status_code == 200, answer.text
    return {worker["id"]: worker for worker in answer.json()["data"]}


def draw(server: Server, **options: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": "a boat", "size": "256x256", "quality": "low", **options}
    with server.http() as client:
        return client.post("/v1/images/generations", json=body)


def chat(server: Server) -> httpx.Response:
    body = {"model": "starter-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    with server.http() as client:
        return client.post("/v1/chat/completions", json=body)


def wake(server: Server) -> None:
    """Wake all workers that a test before has left asleep."""
    until(lambda: all(each["state"] != "waking" for each in admin(server, "wake").json()["data"]))


def worker_processes(server: Server) -> dict[str, int]:
    """Return the resident bytes of each worker process, as any process of the machine sees them."""
    assert server.process is not None
    found = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            command = (status.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if fields["PPid"] == str(server.process.pid) and b"pipelines.worker" in command:
            found[command[command.index(b"pipelines.worker") + 2].decode()] = int(fields["VmRSS"].split()[0]) * 1024
    return found


def test_asleep_the_workers_have_nothing_and_the_next_call_wakes_the_one_that_it_needs(server: Server) -> None:
    wake(server)
    first = draw(server, seed=7)
    assert first.status_code == 200
    assert "x-darkroom-wake-s" not in first.headers
    before = worker_processes(server)
    assert before.keys() == WORKERS
    assert min(before.values()) > 50 * 2**20

    workers = sleep(server)
    assert workers.keys() == WORKERS
    assert {(each["state"], each["place"]) for each in workers.values()} == {("asleep", "disk")}
    assert worker_processes(server) == {}

    told = server.readiness()
    assert told["status"] == "ready"
    assert [told["image"][0]["sleep"], told["chat"]["sleep"], told["classify"]["sleep"]] == ["asleep"] * 3
    assert {each["state"] for each in told["checkpoints"].values()} == {"asleep"}
    assert told["image"][0]["wake_s"] > 0
    metrics = httpx.get(f"{server.base}/metrics", trust_env=False).text
    assert len(re.findall(r"(?m)^darkroom_worker_asleep\{.*\} 1\.0$", metrics)) == len(WORKERS)
    assert "asleep" in server.darkroom("models").stdout

    again = draw(server, seed=7)
    assert again.status_code == 200
    assert int(again.headers["x-darkroom-wake-s"]) > 0
    assert again.json()["data"][0]["b64_json"] == first.json()["data"][0]["b64_json"]
    assert worker_processes(server).keys() == {"image", "classify"}  # the chat model was not needed
    assert "x-darkroom-wake-s" not in draw(server).headers
    assert chat(server).headers["x-darkroom-wake-s"]
    assert worker_processes(server).keys() == WORKERS
    assert_clean(server)


def test_a_call_that_runs_ends_before_its_worker_sleeps(server: Server) -> None:
    wake(server)
    charged = charges(server)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with suspended(server.readiness()["image"][0]["worker_pid"]):
            call = pool.submit(draw, server)
            until(lambda: server.readiness()["jobs"] == 1)
            told = sleep(server, workers=["image"])["image"]
            assert (told["state"], told["sleeps_after_jobs"], told["jobs"]) == ("awake", True, 1)
        assert call.result().status_code == 200
    until(lambda: server.readiness()["image"][0]["sleep"] == "asleep")
    assert worker_processes(server).keys() == {"chat", "classify"}
    assert charges(server) == charged + 1


@pytest.mark.nightly
def test_wake_loads_before_a_call_and_says_how_long_that_takes(server: Server) -> None:
    sleep(server)
    workers = admin(server, "wake", {"workers": ["image", "chat"]}).json()["data"]
    assert [(each["id"], each["state"], each["wake_s"] > 0) for each in workers] == [
        ("image", "waking", True),
        ("chat", "waking", True),
    ]
    until(lambda: server.readiness()["image"][0]["sleep"] == server.readiness()["chat"]["sleep"] == "awake")
    assert "x-darkroom-wake-s" not in chat(server).headers or server.readiness()["classify"]["sleep"] == "awake"
    assert server.readiness()["checkpoints"]["tiny"]["state"] == "loaded"


@pytest.mark.nightly
def test_a_stream_and_a_job_say_it_before_the_image_is_there(server: Server) -> None:
    sleep(server)
    body = {"model": MODEL, "prompt": "a boat", "size": "256x256", "quality": "low"}
    with server.http() as client:
        queued = client.post("/v1/images/generations", json=body, headers={"Prefer": "respond-async"})
        assert queued.status_code == 202
        assert int(queued.headers["x-darkroom-wake-s"]) > 0
        assert queued.json()["estimated_s"] > 0.5  # of a tiny image, so most of it is the wait for its checkpoint
        until(lambda: client.get(f"/v1/images/jobs/{queued.json()['id']}").json()["state"] == "succeeded")
        sleep(server)
        with client.stream("POST", "/v1/images/generations", json={**body, "stream": True}) as stream:
            assert int(stream.headers["x-darkroom-wake-s"]) > 0
            assert "image_generation.completed" in stream.read().decode()


@pytest.mark.nightly
def test_another_checkpoint_can_be_swapped_in_and_undone_while_all_sleep(server: Server) -> None:
    sleep(server)
    swapped = admin(server, "swap", {"model": MODEL, "checkpoint": "other"})
    assert swapped.status_code == 200, swapped.text
    assert draw(server).status_code == 200
    sleep(server)
    assert admin(server, "undo").status_code == 200
    assert server.readiness()["status"] == "ready"
    assert draw(server).status_code == 200


@pytest.mark.nightly
def test_a_call_that_is_cancelled_while_its_worker_wakes_lets_it_sleep_again(server: Server) -> None:
    sleep(server)
    body = {"model": MODEL, "prompt": "a boat", "size": "256x256", "quality": "low"}
    with server.http() as client:
        job = client.post("/v1/images/generations", json=body, headers={"Prefer": "respond-async"}).json()["id"]
        assert client.post(f"/v1/images/jobs/{job}/cancel").status_code == 200
    until(lambda: server.readiness()["image"][0]["sleep"] == "awake")
    assert sleep(server, workers=["image"])["image"]["state"] == "asleep"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"workers": ["none"]}, "workers[0]"),
        ({"workers": []}, "workers"),
        ({"workers": "chat"}, "workers"),
        ({"to": "moon"}, "to"),
        ({"to": "host"}, "to"),  # a CPU's weights are there
    ],
)
def test_bad_input_names_its_field(server: Server, body: dict[str, Any], param: str) -> None:
    answer = admin(server, "sleep", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.nightly
def test_the_command_line_does_the_same_and_the_audit_names_who_did(server: Server) -> None:
    assert "chat: asleep (disk), back in about" in server.darkroom("sleep", "chat").stdout
    assert "chat: waking, back in about" in server.darkroom("wake", "chat").stdout
    assert "workers.sleep" in server.darkroom("audit").stdout


def test_only_operators_may(server: Server) -> None:
    with server.http() as client:
        assert client.post("/admin/sleep").status_code == 401


@pytest.mark.nightly
def test_an_idle_worker_sleeps_by_itself(tmp_path: Path) -> None:
    weights, configs = write_tiny_files(tmp_path, chat=False)
    server = Server(tmp_path / "home", weights, configs, {"idle_unload_s": "0.5"}).start()
    try:
        until(lambda: server.readiness()["image"][0]["sleep"] == "asleep")
        assert worker_processes(server) == {}
        assert draw(server).status_code == 200
        until(lambda: worker_processes(server) == {})
        assert server.readiness()["status"] == "ready"
        assert server.readiness()["image"][0]["restarts"] == 0
    finally:
        server.kill()
