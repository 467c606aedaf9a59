"""Retries by Idempotency-Key and as OpenAI's SDKs send them, and the status of a call by its id."""

import base64
import concurrent.futures
import contextlib
import json
from typing import Any

import httpx
import pytest

from tests.e2e.test_images_by_sdk import image
from tests.e2e.test_streams import events
from tests.support.harness import PLAIN, MakeServer, Server, assert_clean, charges, suspended, until

PATH = "/v1/images/generations"
QUICK = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count"}
LONG = {**QUICK, "size": "512x512", "steps": 40}


def send(server: Server, body: dict[str, Any], key: str | None = None, **headers: str) -> httpx.Response:
    names = {"idempotency_key": "Idempotency-Key", "retry_count": "x-stainless-retry-count"}
    with server.http(key) as client:
        return client.post(PATH, json=body, headers={names[name]: value for name, value in headers.items()})


def disconnect(server: Server, body: dict[str, Any], **headers: str) -> None:
    """Send a call and close the connection once the call is queued, before it can end."""
    with suspended(server.readiness()["worker_pid"]), server.unread_call(PATH, body, **headers):
        until(lambda: server.readiness()["jobs"] == 1)


def job(server: Server, call_id: str) -> dict[str, Any]:
    with server.http() as client:
        answer: dict[str, Any] = client.get(f"/v1/images/jobs/{call_id}").json()
    return answer


@pytest.fixture(scope="module")
def server(make_tiny: MakeServer) -> Server:
    """A server whose calls survive a disconnect for as long as a busy machine may need to retry."""
    return make_tiny(PLAIN, retry_grace_s="100")


@pytest.fixture(scope="module")
def stranger(server: Server) -> str:
    return server.new_key("stranger")


def test_a_finished_call_is_replayed_and_not_charged_again(server: Server) -> None:
    before = charges(server)
    first = send(server, QUICK, idempotency_key="a key")
    again = send(server, dict(reversed(QUICK.items())), idempotency_key='"a key"')
    assert first.status_code == again.status_code == 200
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == first.json()
    assert again.headers["x-darkroom-job"] == first.headers["x-darkroom-job"]
    assert charges(server) == before + 1


def test_bytes_are_replayed_too_and_so_is_a_stream(server: Server) -> None:
    before = charges(server)
    body = {**QUICK, "response_format": "b64_json"}
    first, again = (send(server, body, idempotency_key="bytes") for _ in range(2))
    assert again.json() == first.json()
    assert base64.b64decode(again.json()["data"][0]["b64_json"]).startswith(b"\x89PNG")
    streams = [send(server, {**QUICK, "stream": True}, idempotency_key="stream") for _ in range(2)]
    assert [answer.headers.get("idempotency-replayed") for answer in streams] == [None, "true"]
    one, other = (events(answer.text)[-1] for answer in streams)
    assert one == other
    assert one[0] == "image_generation.completed"
    assert charges(server) == before + 2


def test_another_body_under_the_same_key_is_422(server: Server) -> None:
    before = charges(server)
    assert send(server, QUICK, idempotency_key="k").status_code == 200
    refused = send(server, {**QUICK, "prompt": "a moon"}, idempotency_key="k")
    assert refused.status_code == 422
    assert refused.json()["error"]["code"] == "idempotency_key_reused"
    assert charges(server) == before + 1


def test_a_key_belongs_to_its_caller_and_its_endpoint(server: Server, stranger: str) -> None:
    mine = send(server, QUICK, idempotency_key="shared")
    theirs = send(server, QUICK, stranger, idempotency_key="shared")
    assert theirs.headers["x-darkroom-job"] != mine.headers["x-darkroom-job"]
    with server.http() as client:
        edited = client.post(
            "/v1/images/edits",
            data={"prompt": "a star", "steps": "1", "size": "256x256"},
            files={"image": image(256, 256)},
            headers={"Idempotency-Key": "shared"},
        )
    assert edited.status_code == 200
    assert "idempotency-replayed" not in edited.headers


def test_a_form_is_the_same_by_its_contents(server: Server) -> None:
    before = charges(server)

    def edit(name: str, content: bytes) -> httpx.Response:
        with server.http() as client:
            form = {"prompt": "a star", "steps": "1", "size": "256x256"}
            headers = {"Idempotency-Key": "form"}
            return client.post("/v1/images/edits", data=form, files={"image": (name, content)}, headers=headers)

    answers = [edit("a.png", image(256, 256)), edit("b.jpg", image(256, 256)), edit("a.png", image(256, 288))]
    assert [answer.status_code for answer in answers] == [200, 200, 422]
    assert answers[1].headers["idempotency-replayed"] == "true"
    assert charges(server) == before + 1


@pytest.mark.parametrize("value", ["", '""', "k" * 256])
def test_an_invalid_key_is_refused(server: Server, value: str) -> None:
    assert send(server, QUICK, idempotency_key=value).json()["error"]["code"] == "invalid_idempotency_key"


def test_a_refusal_is_replayed(server: Server) -> None:
    first, again = (send(server, {**QUICK, "size": "huge"}, idempotency_key="bad") for _ in range(2))
    assert first.status_code == again.status_code == 400
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"


def test_a_running_call_is_joined(server: Server) -> None:
    before = charges(server)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with suspended(server.readiness()["worker_pid"]):
            calls = [pool.submit(send, server, QUICK, idempotency_key="at once") for _ in range(4)]
            until(lambda: server.readiness()["jobs"] == 1)
        answers = [call.result() for call in calls]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({answer.text for answer in answers}) == 1
    assert charges(server) == before + 1


def test_a_keyed_call_continues_without_its_client(server: Server) -> None:
    before = charges(server)
    disconnect(server, QUICK, **{"Idempotency-Key": "disconnected"})
    until(lambda: charges(server) == before + 1)
    assert send(server, QUICK, idempotency_key="disconnected").headers["idempotency-replayed"] == "true"
    assert charges(server) == before + 1


def test_a_retry_of_the_sdks_joins_the_call_whose_connection_was_cut(server: Server) -> None:
    before = charges(server)
    disconnect(server, QUICK, **{"x-stainless-retry-count": "0"})
    joined = send(server, QUICK, retry_count="1")
    replayed = send(server, QUICK, retry_count="2")
    assert joined.status_code == replayed.status_code == 200
    assert replayed.text == joined.text
    assert replayed.headers["idempotency-replayed"] == "true"
    assert charges(server) == before + 1
    fresh = send(server, QUICK, retry_count="0")
    assert fresh.json()["data"] != joined.json()["data"]
    assert charges(server) == before + 2


def test_a_charge_before_a_crash_is_replayed_after_it(make_tiny: MakeServer) -> None:
    server = make_tiny(PLAIN, crash_at="after-capture-commit")
    with contextlib.suppress(httpx.HTTPError):
        send(server, QUICK, idempotency_key="k")
    server.wait_dead()
    server.settings = {}
    server.start()
    answer = send(server, QUICK, idempotency_key="k")
    assert answer.status_code == 200
    assert answer.headers["idempotency-replayed"] == "true"
    path = httpx.URL(answer.json()["data"][0]["url"]).path  # the restarted server has another port
    assert httpx.get(f"{server.base}{path}", timeout=60, trust_env=False).status_code == 200
    assert charges(server) == 1
    assert_clean(server)


def test_the_status_of_a_job_can_be_read_while_it_runs_and_after(server: Server) -> None:
    status: dict[str, Any] = {}

    def in_progress() -> bool:
        status.update(job(server, call_id))
        assert status["state"] in {"queued", "running"}
        return status["progress"] is not None

    body = {**LONG, "stream": True}
    with server.http() as client, client.stream("POST", PATH, json=body) as answer:
        call_id = answer.headers["x-darkroom-job"]
        until(in_progress)
        assert status["state"] == "running"
        assert 1 <= status["progress"]["step"] <= status["progress"]["steps"]
        _, completed = events(answer.read().decode())[-1]
    ended = job(server, call_id)
    assert (ended["id"], ended["object"], ended["state"]) == (call_id, "image.job", "succeeded")
    assert ended["result"]["data"][0]["url"] == completed["url"]
    assert ended["error"] is None


def test_the_ledger_is_clean_after_all_that(server: Server) -> None:
    assert_clean(server)


def test_the_job_of_another_key_does_not_exist(server: Server, stranger: str) -> None:
    call_id = send(server, QUICK).headers["x-darkroom-job"]
    assert job(server, call_id)["state"] == "succeeded"
    with server.http(stranger) as client:
        foreign = client.get(f"/v1/images/jobs/{call_id}")
        unknown = client.get("/v1/images/jobs/img_none")
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json()["error"]["code"] == "job_not_found"
    assert json.loads(foreign.text.replace(call_id, "img_none")) == unknown.json()
