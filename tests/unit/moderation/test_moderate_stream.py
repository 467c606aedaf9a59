"""What a model says is held back until it was read, where the policy reads it."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipelines.protocol.chat import (
    Admitted,
    ChatEvent,
    ChatFinished,
    ChatUsage,
    ChoiceFinished,
    CountJob,
    TextDelta,
    ToolCallDelta,
)
from pipelines.protocol.classify import ClassifyJob
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.refusals import list_refusals
from server.backends.engine_host import JobEvents
from server.errors import ModerationBlocked, TimedOut
from server.flows import moderation as moderate
from server.flows.chat.run import count_tokens
from server.flows.moderation import Subject, check_texts, guarded
from server.moderation.policy import load_policy
from server.services import Services

CLASSIFIER = """
[[classifiers]]
reads = "prompts"
checkpoint = "nsfw"
[classifiers.labels.bad]
policy = "no-bad"
category = "bad"
threshold = 0.5
"""
RULE = '[[rules]]\nname = "no-knives"\ncategory = "violence"\nterms = ["knife"]\n'


def said(*deltas: ChatEvent) -> list[ChatEvent]:
    return [Admitted(3), *deltas, ChoiceFinished(0, "stop"), ChatFinished(ChatUsage(3, 2), 0.1)]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    database.migrate()
    return database


def watched(tmp_path: Path, database: Database, rule: str) -> tuple[Services, Subject]:
    path = tmp_path / "policy.toml"
    path.write_text(rule)
    key, _ = create_key(database, "one", frozenset({"chat"}))
    services = SimpleNamespace(policy=load_policy(path, tmp_path, {"chat", "other"}), database=database)
    return cast(Services, services), Subject("chatcmpl-1", key.id, "chat.completions", "m", "chat")


async def run(services: Services, subject: Subject, events: list[ChatEvent]) -> tuple[list[ChatEvent], list[int]]:
    """What came through, and how many events the engine had told when each of it did."""
    told = 0

    async def engine() -> AsyncGenerator[ChatEvent, None]:
        nonlocal told
        for event in events:
            told += 1
            yield event

    heard: list[Any] = []
    when: list[int] = []
    async for event in guarded(services, subject, engine()):
        heard.append(event)
        when.append(told)
    return heard, when


async def test_nothing_is_held_where_no_rule_reads_answers(tmp_path: Path, database: Database) -> None:
    services, subject = watched(tmp_path, database, RULE + 'stages = ["input"]')
    events = said(TextDelta(0, "a knife"))
    assert await run(services, subject, events) == (events, [1, 2, 3, 4])


async def test_good_words_pass_when_all_of_them_are_there(tmp_path: Path, database: Database) -> None:
    services, subject = watched(tmp_path, database, RULE)
    events = said(TextDelta(0, "a "), TextDelta(0, "spoon"))
    assert await run(services, subject, events) == (events, [1, 5, 5, 5, 5])


@pytest.mark.parametrize(
    "deltas",
    [
        (TextDelta(0, "a kn"), TextDelta(0, "ife")),
        (ToolCallDelta(0, 0, '{"what": "kn', call_id="c", name="f"), ToolCallDelta(0, 0, 'ife"}')),
    ],
)
async def test_a_breach_across_deltas_is_found_and_recorded(
    tmp_path: Path, database: Database, deltas: tuple[ChatEvent, ...]
) -> None:
    services, subject = watched(tmp_path, database, RULE)
    with pytest.raises(ModerationBlocked, match="no-knives"):
        await run(services, subject, said(*deltas))
    (refusal,) = list_refusals(database)
    assert (refusal.stage, refusal.policy, refusal.call_id) == ("output", "no-knives", "chatcmpl-1")


async def test_nobody_waits_for_ever_for_a_worker_that_is_stuck(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []
    stuck = SimpleNamespace(submit=lambda _: JobEvents(asyncio.Queue()), cancel=cancelled.append)
    (tmp_path / "nsfw").mkdir()
    (tmp_path / "nsfw" / "config.json").write_text('{"id2label": {"0": "bad"}}')
    services, subject = watched(tmp_path, database, CLASSIFIER)
    services = cast(Services, SimpleNamespace(policy=services.policy, classifiers=stuck, chat=stuck))
    monkeypatch.setattr(moderate, "ClassifyJob", partial(ClassifyJob, time_limit_s=0.01))
    with pytest.raises(TimedOut):
        await check_texts(services, subject, "input", ["hello"])
    with pytest.raises(TimedOut):
        await count_tokens(services, CountJob("count_1", cast(Any, None), (), time_limit_s=0.01))
    assert len(cancelled) == 2
