"""Prompts that a chat model rewrites first: what is drawn, what answers, files and the gallery say, who reads it."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pipelines.protocol.images import Failed, ImageJob, Queued, Started
from server.catalog.images import CatalogError, load_catalog
from server.data_folders import REPOSITORY
from server.flows.images.enhancing import clean_prompt, cut_to
from tests.support.in_process import InProcess, in_process, png
from tests.support.scripted_upstream import scripted_upstream
from tests.unit.images.test_capabilities import ALL

pytestmark = pytest.mark.asyncio(loop_scope="module")
DRAW, EDITS = "/v1/images/generations", "/v1/images/edits"
ASKED = {"prompt": "a boat", "size": "256x256", "seed": 7, "enhance": True}
POLICY = '[[rules]]\nname = "no-lions"\ncategory = "animals"\nterms = ["lion"]\n'
BETTER = "a wooden boat at dawn, soft light"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    policy = tmp_path_factory.mktemp("policy") / "policy.toml"
    policy.write_text(POLICY)
    home = tmp_path_factory.mktemp("home")
    (home / "admin-key").write_text("admin")
    async with in_process(home, moderation=policy, answers_with_bytes=False) as app:
        yield app


@pytest.fixture
def running(shared: InProcess) -> InProcess:
    shared.workers.text, shared.workers.fails = (f'Prompt: "{BETTER}"\n',), False
    shared.workers.jobs.clear()
    return shared


def drawn(running: InProcess) -> ImageJob:
    (job,) = [job for job in running.workers.jobs if isinstance(job, ImageJob)]
    return job


async def ended(running: InProcess, call_id: str) -> dict[str, Any]:
    async with asyncio.timeout(15):
        while True:
            state: dict[str, Any] = (await running.client.get(f"/v1/images/jobs/{call_id}")).json()
            if state["state"] not in {"queued", "running"}:
                return state
            await asyncio.sleep(0.01)


async def spent(running: InProcess) -> float:
    return float((await running.client.get("/v1/darkroom/me")).json()["spent"])


@pytest.mark.parametrize("way", ["json", "form", "stream", "background", "chat"])
async def test_the_rewritten_prompt_is_drawn_and_returned(running: InProcess, way: str) -> None:
    if way == "form":
        fields = {name: str(value).lower() for name, value in ASKED.items()}
        answer = await running.client.post(EDITS, data=fields, files={"image": png()})
        item = answer.json()["data"][0]
        assert "keep it such an instruction" in running.workers.jobs[0].messages[0]["content"]
    elif way == "chat":
        messages = [{"role": "user", "content": "a boat"}]
        body = {"model": "alpha-image-2-count", "messages": messages, "enhance": True, "seed": 7, "size": "256x256"}
        answer = await running.client.post("/v1/chat/completions", json=body)
        item = {"revised_prompt": BETTER, "seed": 7}
    else:
        more = {"stream": {"stream": True}, "background": {"background": True}}.get(way, {})
        answer = await running.client.post(DRAW, json={**ASKED, **more})
        item = answer.json()["data"][0] if way == "json" else None
    if way in ("stream", "background"):
        item = (await ended(running, answer.headers["x-darkroom-job"]))["result"]["data"][0]
    assert answer.status_code in (200, 202), answer.text
    assert way != "stream" or f'"revised_prompt":"{BETTER}"' in answer.text
    assert item is not None
    assert (item["revised_prompt"], item["seed"]) == (BETTER, 7)
    job = drawn(running)
    assert (job.prompt, job.metadata["prompt"], job.metadata["original_prompt"]) == (BETTER, BETTER, "a boat")
    assert job.metadata["enhanced_by"] == "starter-chat"


async def test_the_gallery_has_both_prompts_and_draws_the_one_that_was_drawn(running: InProcess) -> None:
    answer = (await running.client.post(DRAW, json=ASKED)).json()
    assert answer["parameters"]["enhanced_by"] == "starter-chat"
    assert "original_prompt" not in answer["parameters"]
    name = answer["data"][0]["url"].rpartition("/")[2]
    record = (await running.client.get(f"/v1/darkroom/results/{name}")).json()
    assert (record["prompt"], record["parameters"]["original_prompt"]) == (BETTER, "a boat")


async def test_the_chat_is_in_the_images_price_and_its_tokens_are_the_keys(running: InProcess) -> None:
    before = await spent(running)
    enhanced = await running.client.post(DRAW, json=ASKED)
    assert enhanced.status_code == 200
    assert await spent(running) - before == pytest.approx(0.10)
    calls = (await running.client.get("/v1/darkroom/calls")).json()["data"]
    assert (calls[0]["model"], calls[0]["completion_tokens"]) == ("alpha-image-2-count", 1)


@pytest.mark.parametrize(
    ("texts", "fails", "reason"),
    [((), True, "The engine failed."), (("  \n",), False, "The model `starter-chat` wrote no prompt.")],
)
async def test_the_callers_prompt_is_drawn_if_the_chat_fails(
    running: InProcess, texts: tuple[str, ...], fails: bool, reason: str
) -> None:
    running.workers.text, running.workers.fails = texts, fails
    answer = await running.client.post(DRAW, json=ASKED)
    assert answer.status_code == 200
    assert answer.json()["parameters"]["enhance_failed"] == reason
    assert "revised_prompt" not in answer.json()["data"][0]
    assert (drawn(running).prompt, "original_prompt" in drawn(running).metadata) == ("a boat", False)


@pytest.mark.parametrize(("sent", "written"), [("a lion", BETTER), ("a boat", "a boat and a lion")])
async def test_moderation_reads_both_prompts(running: InProcess, sent: str, written: str) -> None:
    running.workers.text = (written,)
    refused = await running.client.post(DRAW, json=ASKED | {"prompt": sent})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "moderation_blocked")
    assert not [job for job in running.workers.jobs if isinstance(job, ImageJob)]
    assert len(running.workers.jobs) == (sent == "a boat")  # the chat reads nothing that is refused


async def test_a_prompt_that_is_too_long_is_cut_before_its_first_step(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, sentence = 20, "A wooden boat drifts at dawn in soft light"
    running.workers.text = (". ".join([sentence] * 9),)

    async def draw(job: ImageJob) -> None:
        words = len(job.prompt.split())
        if job.sampling.long_prompt != "refuse" or words <= most:
            await plain(job)
            return
        too_long = Failed("prompt_too_long", "too long", param="prompt", read_part=most / words)
        running.workers.send(job, Queued(), Started(), too_long)

    plain = running.workers._draw
    monkeypatch.setattr(running.workers, "_draw", draw)
    monkeypatch.setattr(running.services.engines.image, "capabilities", lambda _: ALL)
    answer = await running.client.post(DRAW, json=ASKED)
    assert answer.status_code == 200, answer.text
    jobs = [job for job in running.workers.jobs if isinstance(job, ImageJob)]
    assert [job.sampling.long_prompt for job in jobs] == ["refuse", "refuse"]
    revised = answer.json()["data"][0]["revised_prompt"]
    assert revised == jobs[-1].prompt == jobs[-1].metadata["prompt"] == f"{sentence}. {sentence}."
    assert answer.json()["parameters"]["long_prompt"] == "tell"


async def test_nobody_is_asked_for_a_call_without_budget_or_for_an_enlargement(running: InProcess) -> None:
    refused = await running.client.post(DRAW, json=ASKED | {"model": "gamma"})
    assert (refused.status_code, running.workers.jobs) == (404, [])
    wrong = await running.client.post(DRAW, json=ASKED | {"enhance": "please"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "enhance")


@contextmanager
def configs_of(folder: Path, default: str, more: str) -> Iterator[Path]:
    """A catalog whose alpha model enhances by itself, with this default and these models for chats."""
    configs = Path(shutil.copytree(REPOSITORY / "model_configs", folder / "model_configs"))
    alpha = configs / "alpha-image-2.toml"
    alpha.write_text("enhance = true\n" + alpha.read_text())
    (configs / "chat.toml").write_text(default + more)
    yield configs


async def test_a_catalog_turns_it_on_and_another_server_writes(tmp_path: Path) -> None:
    with scripted_upstream({}, BETTER) as (url, bodies):
        more = f'\n[[models]]\nname = "large"\nupstream = "{url}"\n'
        with configs_of(tmp_path, 'default = "large"', more) as configs:
            async with in_process(tmp_path / "home", configs=configs) as running:
                answer = await running.client.post(DRAW, json={"prompt": "a boat", "size": "256x256"})
                assert answer.json()["data"][0]["revised_prompt"] == BETTER
                without = await running.client.post(DRAW, json=ASKED | {"enhance": False})
                assert "revised_prompt" not in without.json()["data"][0]
                cards = (await running.client.get("/v1/models")).json()["data"]
    assert {card["family"] for card in cards if card.get("enhance")} == {"alpha"}
    (body,) = bodies
    assert body.keys() == {"model", "messages", "stream", "stream_options"}
    assert body["messages"][1] == {"role": "user", "content": "a boat"}


async def test_a_key_that_may_not_chat_asks_in_vain_and_a_catalogs_wish_falls_back(tmp_path: Path) -> None:
    more = '\ngroup = "staff"\n[[models]]\nname = "starter-chat"\ncheckpoint = "starter-chat"\n'
    with configs_of(tmp_path, 'default = "starter-chat"', more) as configs:
        async with in_process(tmp_path / "home", configs=configs) as running:
            asked = await running.client.post(DRAW, json=ASKED)
            wished = await running.client.post(DRAW, json={"prompt": "a boat", "size": "256x256"})
    assert (asked.status_code, "lacks the group 'staff'" in asked.text) == (403, True)
    assert "lacks the group 'staff'" in wished.json()["parameters"]["enhance_failed"]


async def test_without_a_chat_model_the_field_is_refused_and_so_is_the_catalog(tmp_path: Path) -> None:
    configs = Path(shutil.copytree(REPOSITORY / "model_configs", tmp_path / "model_configs"))
    (configs / "chat.toml").unlink()
    async with in_process(tmp_path / "home", configs=configs) as running:
        asked = await running.client.post(DRAW, json=ASKED)
    assert (asked.status_code, asked.json()["error"]["param"]) == (400, "enhance")
    (configs / "alpha-image-2.toml").write_text("enhance = true\n" + (configs / "alpha-image-2.toml").read_text())
    with pytest.raises(CatalogError, match="enhance: needs a chat model"):
        load_catalog(configs, tmp_path)


@pytest.mark.parametrize(
    ("written", "prompt"),
    [
        ("  a boat \n at sea ", "a boat at sea"),
        ('"a boat"', "a boat"),
        ("Enhanced prompt: “a boat”", "a boat"),
        ("**Prompt:** a boat", "a boat"),
        ("```\na boat\n```", "a boat"),
        ('a sign that says "open"', 'a sign that says "open"'),
        ("", ""),
    ],
)
async def test_a_chats_manners_are_not_drawn(written: str, prompt: str) -> None:
    assert clean_prompt(written) == prompt


@pytest.mark.parametrize(
    ("text", "length", "kept"),
    [
        ("a red boat. a blue sea. a sky", 26, "a red boat. a blue sea."),
        ("a red boat on the sea, warm light everywhere", 30, "a red boat on the sea"),
        ("boat boat boat boat", 16, "boat boat boat"),
        ("x" * 100, 20, "x" * 20),
        ("一艘红色的船，在海上。天空", 12, "一艘红色的船，在海上。"),
    ],
)
async def test_a_prompt_is_cut_where_it_ends_best(text: str, length: int, kept: str) -> None:
    assert cut_to(text, length) == kept
