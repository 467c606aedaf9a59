"""Every request that runs a model gets one row in the log of calls, however it ends; and its log line says the same."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import structlog

from server.flows.call_recording import describe_body
from server.telemetry.call_trace import CallTrace, current_trace
from tests.support.in_process import InProcess, in_process, png

pytestmark = pytest.mark.asyncio(loop_scope="module")
DRAW, DRAWN = "/v1/images/generations", {"prompt": "a red boat", "size": "256x256", "seed": 7}
CALLS = "/v1/darkroom/calls"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    home = tmp_path_factory.mktemp("home")
    (home / "admin-key").write_text("admin")
    async with in_process(home, logged_refusals_per_minute=3) as app:
        yield app


async def row(running: InProcess, call_id: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """The details of a call, once it is written."""
    async with asyncio.timeout(60):
        while True:
            shown = await running.client.get(f"{CALLS}/{call_id}", headers=headers)
            if shown.status_code != 404:
                found: dict[str, Any] = shown.json()
                return found
            await asyncio.sleep(0.01)


async def request(running: InProcess, path: str, body: Any, **headers: str) -> tuple[httpx.Response, dict[str, Any]]:
    answer = await running.client.post(path, json=body, headers=headers)
    return answer, await row(running, answer.headers["x-request-id"])


async def test_an_image_is_recorded_with_its_price_and_times(running: InProcess) -> None:
    answer, call = await request(running, DRAW, DRAWN | {"n": 2})
    assert (call["endpoint"], call["model"], call["status"], call["code"]) == (DRAW, "alpha-image-2-count", 200, None)
    assert (call["price"], call["images"], call["run_s"], call["replayed"]) == ("0.10", 2, 0.1, False)
    assert call["queue_s"] >= 0
    assert call["job"] == answer.headers["x-darkroom-job"]
    assert (call["prompt"], call["parameters"]) == ("a red boat", {"size": "256x256", "seed": 7, "n": 2})
    assert (await row(running, call["job"]))["id"] == call["id"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({**DRAWN, "model": "gamma"}, 404, "model_not_found"),
        ({**DRAWN, "size": "huge"}, 400, "invalid_value"),
        ({**DRAWN, "n": 0}, 400, "integer_below_min_value"),
    ],
)
async def test_a_refusal_is_recorded_with_its_code(running: InProcess, body: Any, status: int, code: str) -> None:
    headers = await running.another_key()
    answer, call = await _as(running, headers, body)
    assert answer.json()["error"]["code"] == code
    assert (call["status"], call["code"], call["price"], call["run_s"]) == (status, code, "0.00", None)
    if "model" in body:
        assert call["model"] == "gamma"


async def _as(running: InProcess, headers: dict[str, str], body: Any) -> tuple[httpx.Response, dict[str, Any]]:
    answer = await running.client.post(DRAW, json=body, headers=headers)
    return answer, await row(running, answer.headers["x-request-id"], headers)


async def test_refusals_are_capped_for_each_key_and_minute(running: InProcess) -> None:
    headers = await running.another_key()
    for _ in range(6):
        await running.client.post(DRAW, json={}, headers=headers)
    answer, _ = await _as(running, headers, DRAWN)  # what is not refused has a row all the same
    assert answer.status_code == 200
    listed = (await running.client.get(CALLS, headers=headers)).json()["data"]
    assert [call["status"] for call in listed] == [200, 400, 400, 400]


async def test_a_replay_is_a_row_of_its_own_that_costs_nothing(running: InProcess) -> None:
    first = await request(running, DRAW, DRAWN, **{"Idempotency-Key": "again"})
    second = await request(running, DRAW, DRAWN, **{"Idempotency-Key": "again"})
    assert [call["price"] for _, call in (first, second)] == ["0.10", "0.00"]
    assert [call["replayed"] for _, call in (first, second)] == [False, True]


async def test_a_call_in_the_background_is_recorded_when_it_ends(running: InProcess) -> None:
    running.workers.gate.clear()
    answer = await running.client.post(DRAW, json=DRAWN | {"background": True})
    shown = await running.client.get(f"{CALLS}/{answer.headers['x-request-id']}")
    running.workers.gate.set()
    assert (answer.status_code, shown.status_code) == (202, 404)
    call = await row(running, answer.headers["x-request-id"])
    assert (call["status"], call["price"], call["run_s"]) == (200, "0.10", 0.1)


async def test_a_call_that_is_cancelled_is_recorded_as_such(running: InProcess) -> None:
    running.workers.gate.clear()
    answer = await running.client.post(DRAW, json=DRAWN | {"background": True})
    await running.client.post(f"/v1/images/jobs/{answer.headers['x-darkroom-job']}/cancel")
    running.workers.gate.set()
    call = await row(running, answer.headers["x-request-id"])
    assert (call["status"], call["code"], call["price"]) == (409, "cancelled", "0.00")


async def test_chats_and_responses_are_recorded_with_their_tokens(running: InProcess) -> None:
    said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    _, chat = await request(running, "/v1/chat/completions", {"messages": said, "temperature": 0.5})
    assert (chat["model"], chat["prompt_tokens"], chat["completion_tokens"]) == ("starter-chat", 3, 2)
    assert (chat["prompt"], chat["parameters"], chat["run_s"]) == ("Hi", {"temperature": 0.5}, 0.1)
    answer, response = await request(running, "/v1/responses", {"input": "Hello"})
    assert (response["job"], response["prompt"], response["model"]) == (answer.json()["id"], "Hello", "starter-chat")
    assert response["price"] == "0.00"


async def test_the_log_line_names_key_model_job_and_times_but_no_prompt(running: InProcess) -> None:
    with structlog.testing.capture_logs() as lines:
        answer = await running.client.post(DRAW, json=DRAWN)
        refused = await running.client.post(DRAW, json=DRAWN | {"model": "gamma"})
    drawn, gamma = [line for line in lines if line["event"] == "answer"]
    me = (await running.client.get("/v1/darkroom/me")).json()["id"]
    assert (drawn["key"], drawn["model"], drawn["status"]) == (me, "alpha-image-2-count", 200)
    assert (drawn["job"], drawn["price"], drawn["run_s"]) == (answer.headers["x-darkroom-job"], "0.10", 0.1)
    assert (gamma["model"], gamma["code"], gamma["status"]) == ("gamma", "model_not_found", refused.status_code)
    assert "boat" not in str(lines)


async def test_a_failed_call_says_why(running: InProcess) -> None:
    _, refused = await request(running, DRAW, DRAWN | {"n": 99})
    assert (refused["status"], refused["code"], refused["param"]) == (400, "integer_above_max_value", "n")
    assert refused["message"].startswith("Invalid 'n'")
    _, drawn = await request(running, DRAW, DRAWN)
    assert (drawn["code"], drawn["param"], drawn["message"]) == (None, None, None)


async def test_reads_that_succeed_fill_no_log(running: InProcess) -> None:
    with structlog.testing.capture_logs() as lines:
        for path in ("/v1/models", "/v1/darkroom/me", "/v1/models/nowhere"):
            await running.client.get(path)
    assert [line["path"] for line in lines if line["event"] == "answer"] == ["/v1/models/nowhere"]


async def test_an_image_remembers_what_it_was_made_from(running: InProcess) -> None:
    drawn = (await running.client.post(DRAW, json=DRAWN | {"negative_prompt": "fog"})).json()
    url = drawn["data"][0]["url"]
    name = url.rpartition("/")[2]
    shown = (await running.client.get(f"/v1/darkroom/results/{name}")).json()
    assert (shown["seed"], shown["prompt"]) == (7, "a red boat")
    assert {name: shown["parameters"][name] for name in ("size", "n", "negative_prompt", "model")} == {
        "size": "256x256", "n": 1, "negative_prompt": "fog", "model": "alpha-image-2-count",
    }  # fmt: skip
    child = (await running.client.post(DRAW, json={**DRAWN, "image": url})).json()
    path = f"/v1/darkroom/results/{child['data'][0]['url'].rpartition('/')[2]}"
    assert (await running.client.get(path)).json()["parents"] == [name]


async def test_an_image_that_is_sent_back_as_a_file_is_known_by_its_bytes(running: InProcess) -> None:
    for entry in (await running.client.get("/v1/darkroom/results")).json()[
        "data"
    ]:  # the worker here always draws alike
        await running.client.delete(f"/v1/darkroom/results/{entry['id']}")
    drawn = (await running.client.post(DRAW, json=DRAWN)).json()["data"][0]["url"]
    name = drawn.rpartition("/")[2]
    stored = (await running.client.get(f"/cdn/{name}")).content
    data_uri = f"data:image/png;base64,{base64.b64encode(stored).decode()}"

    async def made_by(answer: httpx.Response) -> dict[str, Any]:
        path = f"/v1/darkroom/results/{answer.json()['data'][0]['url'].rpartition('/')[2]}"
        shown: dict[str, Any] = (await running.client.get(path)).json()
        return shown

    other = png(64, 64, "orange")
    files = [("image[]", ("a.png", other, "image/png")), ("image[]", ("b.png", stored, "image/png"))]
    texts = {"prompt": "a boat", "model": "beta-2.5-flash-image-count", "response_format": "url"}
    by_form = await made_by(await running.client.post("/v1/images/edits", data=texts, files=files))
    assert (by_form["parents"], by_form["endpoint"]) == ([name], "images.edits")
    assert (by_form["parameters"]["references"], by_form["parameters"]["masked"]) == (2, False)
    by_json = await made_by(await running.client.post(DRAW, json={**DRAWN, "image": data_uri}))
    assert (by_json["parents"], by_json["endpoint"]) == (
        [by_form["id"]],
        "images.generations",
    )  # the newest that is alike
    assert by_json["parameters"]["references"] == 1
    for made in (name, by_form["id"], by_json["id"]):
        await running.client.delete(f"/v1/darkroom/results/{made}")
    gone = await made_by(await running.client.post(DRAW, json={**DRAWN, "image": data_uri}))
    assert gone["parents"] == []


async def test_nothing_of_prompts_is_kept_where_that_is_off(tmp_path: Path) -> None:
    async with in_process(tmp_path, keep_prompts=False) as app:
        answer, call = await request(app, DRAW, DRAWN)
        assert (call["prompt"], call["parameters"], call["price"]) == (None, None, "0.10")
        name = answer.json()["data"][0]["url"].rpartition("/")[2]
        shown = (await app.client.get(f"/v1/darkroom/results/{name}")).json()
        assert (shown["prompt"], shown["parameters"], shown["seed"]) == (None, None, None)


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"prompt": "a"}, "a"),
        ({"input": "b"}, "b"),
        ({"input": [{"type": "message", "content": [{"type": "input_text", "text": "c"}]}]}, "c"),
        ({"contents": [{"role": "user", "parts": [{"text": "d"}]}, {"role": "model", "parts": [{"text": "no"}]}]}, "d"),
        ({"messages": [{"role": "user", "content": "e"}, {"role": "assistant", "content": "no"}]}, "e"),
        ({"messages": 7}, None),
        ({"messages": [[[[["deep"]]]]]}, None),
        ({"prompt": {"a": 1}}, None),
    ],
)
async def test_what_was_asked_is_found_in_every_protocol(body: dict[str, Any], prompt: str | None) -> None:
    describe_body(trace := CallTrace(), {**body, "model": "m", "image": "x" * 500, "top_p": 1})
    assert (trace.prompt, trace.model, trace.parameters) == (prompt, "m", {"model": "m", "top_p": 1})


async def test_outside_of_a_request_nothing_is_traced() -> None:
    assert current_trace() is not current_trace()
