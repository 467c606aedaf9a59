"""Chats whose client sends back the text of earlier answers alone, as Open WebUI 0.12 does: it keeps the images of
`delta.images` as files of its own, and leaves out an answer without a text."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from pipelines.protocol.images import ImageJob
from tests.support.in_process import InProcess, in_process

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH = "/v1/chat/completions"
SAID = {"role": "user", "content": "a red boat"}
FIRST: Any = {"stream": True, "model": "beta-3-pro-image-count", "messages": [SAID]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process(tmp_path_factory.mktemp("home"), links_in_chats=True) as app:
        yield app


def second(text: str) -> Any:
    """Its body of the next turn, to the letter."""
    answer = {"role": "assistant", "content": text}
    return {**FIRST, "messages": [SAID, answer, {"role": "user", "content": "make it blue"}]}


async def test_the_next_image_is_drawn_from_the_one_that_the_text_links(running: InProcess) -> None:
    streamed = await running.client.post(PATH, json=FIRST)
    chunks = [
        json.loads(line.removeprefix("data: ")) for line in streamed.text.splitlines() if line.startswith("data: {")
    ]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    assert text.startswith("[image](http://test")
    assert sum(len(delta.get("images", ())) for delta in deltas) == 1
    whole = await running.client.post(PATH, json={**second(text.strip()), "stream": False})
    assert whole.status_code == 200, whole.text
    job: ImageJob = running.workers.jobs[-1]
    assert (job.prompt, len(job.references)) == ("make it blue", 1)
    message = whole.json()["choices"][0]["message"]
    assert message["content"].startswith("[image](http://test")
    assert message["content"] != text


async def test_a_chat_model_that_draws_sees_what_earlier_texts_link(running: InProcess) -> None:
    drawn = await running.client.post("/v1/images/generations", json={"prompt": "a boat", "response_format": "url"})
    running.workers.call = ("image_generation", '{"prompt": "a blue boat"}')
    body = {**second(f"[image]({drawn.json()['data'][0]['url']})"), "model": "starter-chat", "stream": False}
    answer = await running.client.post(PATH, json={**body, "modalities": ["image", "text"]})
    running.workers.call = None
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"].startswith("[image](http://test")
    jobs = [job for job in running.workers.jobs if isinstance(job, ImageJob) and job.prompt == "a blue boat"]
    assert {len(job.references) for job in jobs} == {1}


async def test_a_link_is_never_fetched(running: InProcess) -> None:
    gone = await running.client.post(PATH, json=second(f"[image](https://example.com/cdn/{'0a' * 16}.png)"))
    assert (gone.status_code, gone.headers["x-darkroom-ignored"]) == (200, "messages[1].content")
    assert running.workers.jobs[-1].references == ()
    other = await running.client.post(PATH, json=second("![a boat](https://example.com/boat.png)"))
    assert other.status_code == 200
    assert running.workers.jobs[-1].references == ()


async def test_texts_link_nothing_without_the_setting(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with in_process(tmp_path_factory.mktemp("home")) as app:
        answer = await app.client.post(PATH, json={**FIRST, "stream": False})
        assert answer.json()["choices"][0]["message"]["content"] == ""
