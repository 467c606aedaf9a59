"""One conversation is one prompt, whatever protocol tells it and whatever template shows it."""

import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from pipelines.chat.encoding import Conversation, template_input, template_messages
from pipelines.chat.prompts.chat_template import ChatTemplates, TemplateUse
from server.data_folders import REPOSITORY
from starters.chat.tokens import make_tokenizer
from tests.support.chat_templates import FAMILIES
from tests.support.in_process import InProcess, in_process
from tests.support.told import PROTOCOLS, told
from tests.support.told_conversations import PLAIN, TABLE

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROWS = [(name, protocol) for name, row in TABLE.items() for protocol in PROTOCOLS if protocol not in row.cannot]
SEEING_MODEL = """
[[models]]
name = "seeing"
checkpoint = "seeing"
tools = true
vision = true
"""
SEEING = SimpleNamespace(processor=object())  # a checkpoint, as far as its messages are asked


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    """A server with a model that sees beside its own."""
    home = tmp_path_factory.mktemp("home")
    configs = Path(shutil.copytree(REPOSITORY / "model_configs", home / "configs"))
    with (configs / "chat.toml").open("a") as file:
        file.write(SEEING_MODEL)
    async with in_process(home, configs=configs) as running:
        yield running


@cache
def template(family: str) -> TemplateUse:
    tokenizer = make_tokenizer([])
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    found = ChatTemplates.of(tokenizer, PLAIN if family == "plain" else FAMILIES[family]).choose(tools=False)
    return replace(found, traits=replace(found.traits, parts=True)) if family == "plain" else found


def prompt(family: str, messages: Any, images: Any = ()) -> str:
    """Return the prompt of a job, as the engine makes it."""
    use = template(family)
    shaped = template_messages(SEEING, messages, images)  # type: ignore[arg-type]
    return use.render(*template_input(use, Conversation(shaped, ())))


@pytest.mark.parametrize(("name", "protocol"), ROWS)
async def test_a_conversation_is_shown_as_it_was_told(app: InProcess, name: str, protocol: str) -> None:
    row = TABLE[name]
    path, body = told(protocol, row.turns, "seeing" if row.sees else "starter-chat")
    answer = await app.client.post(path, json=body)
    if row.refused:
        assert (answer.status_code, row.refused in answer.text) == (400, True), answer.text
        return
    assert answer.status_code == 200, answer.text
    job = app.workers.jobs[-1]
    assert prompt("plain", job.messages, job.images) == "".join(f"{line}\n" for line in row.shown)
    assert ("x-darkroom-ignored" in answer.headers) is row.named


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def jobs(app: InProcess) -> dict[str, Any]:
    """The messages of every row that a blind model reads, as a chat completion tells it."""
    found = {}
    for name, row in TABLE.items():
        if not (row.sees or row.refused):
            path, body = told("chat", row.turns, "starter-chat")
            answer = await app.client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            found[name] = app.workers.jobs[-1].messages
    return found


@pytest.mark.parametrize("family", FAMILIES)
async def test_every_family_shows_results_in_the_order_of_their_calls(jobs: dict[str, Any], family: str) -> None:
    for name, messages in jobs.items():
        shown = re.findall(r"say\d", prompt(family, messages))
        told = re.findall(r"say\d", " ".join(line for line in TABLE[name].shown if line.startswith("tool:")))
        assert [word for word in shown if word in told] == told, name
