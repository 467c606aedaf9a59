"""What of a prompt had no effect, as headers name it."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from pipelines.protocol.images import Failed, Finished, ImageJob, Queued, Started
from server.flows.images.prompt_notes import describe_truncation, foreign_syntax
from tests.support.in_process import InProcess, in_process

PATH = "/v1/images/generations"
in_module_loop = pytest.mark.asyncio(loop_scope="module")
PROMPT = "a red boat, and a “big” house"
CUT = {"prompt_tokens": {"used": 75, "of": 75, "cut": 14, "cut_at": 11}}
SAID = r'prompt: 14 of 89 tokens, from "and a \u201cbig\u201d house"'


def test_what_was_cut_is_said_with_the_text_where_it_begins() -> None:
    assert describe_truncation(CUT, {"prompt": PROMPT, "negative_prompt": None}) == SAID
    both = CUT | {"negative_prompt_tokens": {"used": 75, "of": 75, "cut": 3}}
    said = describe_truncation(both, {"prompt": PROMPT, "negative_prompt": "blurred"})
    assert said == f"{SAID}; negative_prompt: 3 of 78 tokens"
    assert describe_truncation({"prompt_tokens": {"used": 5, "of": 75}}, {"prompt": PROMPT}) == ""
    assert describe_truncation({}, {"prompt": PROMPT}) == ""
    long = describe_truncation(CUT, {"prompt": "a\n" * 1000})
    assert long.isascii()
    assert long.isprintable()
    assert len(long) < 200


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ("a boat <lora:ink:1>", ['<lora:ink:1> (send loras: {"ink": 1})']),
        ("<lora:my ink:0.8:0.5>, <lora:oil>", [
            '<lora:my ink:0.8:0.5> (send loras: {"my ink": 0.8})', '<lora:oil> (send loras: {"oil": 1})',
        ]),
        ("a (red:1.5) boat, ((blue:1.2))", ["(red:1.5)", "(blue:1.2)"]),
        ("(a big, old house:0.8) (größe : .5)", ["(a big%2C old house:0.8)", "(gr%C3%B6%C3%9Fe : .5)"]),
        ("(red:1.5) and (red:1.5)", ["(red:1.5)"]),
        ("a boat (red), ((big)), [small], (see: there), at (10:30), in (16:9), a:2 (x: 25)", []),
        ("a boat\nNegative prompt: ugly, bad\nSteps: 20, Sampler: Euler a, CFG scale: 7, Seed: 123", [
            "Negative prompt: (send negative_prompt as a field)", "Steps: 20 (send steps as a field)",
        ]),
        ("a boat, embedding:easy-cat, (embedding:wolf:1.2)", [
            "(embedding:wolf:1.2)", "embedding:easy-cat (write <easy-cat>)", "embedding:wolf (write <wolf>)",
        ]),
        ("steps: 3, three Steps: 5, no negative prompt: at all", []),
        ("", []),
    ],
)  # fmt: skip
def test_syntax_of_other_programs_is_named_and_parentheses_are_not(prompt: str, named: list[str]) -> None:
    assert foreign_syntax({"prompt": prompt}) == [f"prompt:{each}" for each in named]
    negative = [f"negative_prompt:{each}" for each in named]
    assert foreign_syntax({"prompt": "x", "negative_prompt": prompt}) == negative
    assert all(each.isascii() and "," not in each for each in negative)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home")) as app:
        yield app


@pytest.fixture
def cutting(running: InProcess, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Its image worker cuts every prompt."""
    send = running.workers.send

    def with_found(job: Any, *events: Any) -> None:
        events = tuple(
            Finished(each.images, each.run_s, each.unit_s, found=CUT) if isinstance(each, Finished) else each
            for each in events
        )
        send(job, *events)

    monkeypatch.setattr(running.workers, "send", with_found)
    return running


@in_module_loop
async def test_the_answer_and_its_repetition_have_the_header(cutting: InProcess) -> None:
    for _ in range(2):
        answer = await cutting.client.post(PATH, json={"prompt": PROMPT}, headers={"Idempotency-Key": "cut"})
        assert answer.headers["x-darkroom-truncated"] == SAID
        assert answer.json()["parameters"]["prompt_tokens"] == CUT["prompt_tokens"]
    assert answer.headers["Idempotency-Replayed"] == "true"


@in_module_loop
async def test_a_stream_tells_it_in_its_last_event(cutting: InProcess) -> None:
    answer = await cutting.client.post(PATH, json={"prompt": PROMPT, "stream": True})
    assert "x-darkroom-truncated" not in answer.headers
    assert '"cut":14' in answer.text.replace(" ", "")


@in_module_loop
async def test_a_chat_with_images_tells_it(cutting: InProcess) -> None:
    messages = [{"role": "user", "content": f"{PROMPT} <lora:ink:1>"}]
    body = {"model": "alpha-image-2-count", "messages": messages}
    answer = await cutting.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-darkroom-truncated"].startswith("prompt: 14 of 89 tokens")
    assert answer.headers["x-darkroom-ignored"] == 'prompt:<lora:ink:1> (send loras: {"ink": 1})'
    cut = answer.headers["x-darkroom-truncated"]
    assert [image["truncated"] for image in answer.json()["choices"][0]["message"]["images"]] == [cut]
    stream = await cutting.client.post("/v1/chat/completions", json={**body, "stream": True})
    chunks = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")]
    images = [image for chunk in chunks for each in chunk["choices"] for image in each["delta"].get("images", ())]
    assert [image["truncated"] for image in images] == [cut]


@in_module_loop
@pytest.mark.parametrize("action", ["generateContent", "streamGenerateContent?alt=sse"])
async def test_a_gemini_candidate_tells_it(cutting: InProcess, action: str) -> None:
    body = {"contents": [{"parts": [{"text": PROMPT}]}]}
    answer = await cutting.client.post(f"/v1beta/models/alpha-image-2-count:{action}", json=body)
    assert answer.status_code == 200
    (said,) = re.findall(r'"finishMessage": ?"([^"]*(?:\\.[^"]*)*)"', answer.text)
    assert said.startswith("prompt: 14 of 89 tokens")


@in_module_loop
async def test_a_prompt_that_is_read_whole_has_no_header(running: InProcess) -> None:
    answer = await running.client.post(PATH, json={"prompt": "a red boat <lora:ink:1>", "style": "vivid"})
    assert "x-darkroom-truncated" not in answer.headers
    assert answer.headers["x-darkroom-ignored"] == 'style, prompt:<lora:ink:1> (send loras: {"ink": 1})'


@in_module_loop
async def test_a_refused_prompt_is_a_400_that_names_its_field(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(job: ImageJob) -> None:
        failed = Failed("prompt_too_long", "'prompt' has 89 tokens, of which this model reads 75", param="prompt")
        running.workers.send(job, Queued(), Started(), failed)

    monkeypatch.setattr(running.workers, "_draw", refuse)
    answer = await running.client.post(PATH, json={"prompt": PROMPT, "long_prompt": "refuse"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "prompt_too_long", "prompt")
    unknown = await running.client.post(PATH, json={"prompt": PROMPT, "long_prompt": "split"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "long_prompt")


@in_module_loop
async def test_the_image_tool_tells_it_in_its_item_and_the_header(cutting: InProcess) -> None:
    cutting.workers.call = ("image_generation", '{"prompt": "a red boat, and a house", "action": "generate"}')
    tool = {"type": "image_generation", "long_prompt": "tell"}
    body = {"model": "starter-chat", "input": "draw", "tools": [tool], "tool_choice": {"type": "image_generation"}}
    answer = await cutting.client.post("/v1/responses", json=body)
    cutting.workers.call = None
    said = {item["truncated"] for item in answer.json()["output"] if item["type"] == "image_generation_call"}
    assert said == {'prompt: 14 of 89 tokens, from "and a house"'}
    assert answer.headers["x-darkroom-truncated"] in said
    job = next(each for each in reversed(cutting.workers.jobs) if isinstance(each, ImageJob))
    assert job.sampling.long_prompt == "tell"
