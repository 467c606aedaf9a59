"""Where the policy covers answers, their events are buffered until the whole answer is checked."""

from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from pipelines.protocol.chat import (
    Admitted,
    ChatEvent,
    ChatFinished,
    ChatJob,
    ChatUsage,
    ChoiceFinished,
    CountJob,
    TextDelta,
    ToolCallDelta,
)
from pipelines.protocol.classify import ClassifyEvent, ClassifyJob
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.refusals import list_refusals
from server.backends.engine_host import EngineHost, HostLimits
from server.errors import ModerationBlocked, TimedOut
from server.flows import moderation
from server.flows.chat.run import ChatRunner
from server.flows.moderation import ModerationContext, Moderator
from server.moderation.policy import load_policy
from server.state.served import ServedPolicy
from server.state.tasks import BackgroundTasks
from server.telemetry.metrics import Metrics
from server.telemetry.tracing import Tracing

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


def answer(*deltas: ChatEvent) -> list[ChatEvent]:
    return [Admitted(3), *deltas, ChoiceFinished(0, "stop"), ChatFinished(ChatUsage(3, 2), 0.1)]


@pytest.fixture
def classifiers() -> EngineHost[ClassifyJob, ClassifyEvent]:
    """Not started: jobs wait in it until they are cancelled."""
    return EngineHost("classify", (), HostLimits(1))


@pytest.fixture
def context(database: Database) -> ModerationContext:
    key, _ = create_key(database, "one", frozenset({"chat"}))
    return ModerationContext("chatcmpl-1", key.id, "chat.completions", "m", "chat")


MakeModerator = Callable[[str], Moderator]


@pytest.fixture
def make_moderator(
    tmp_path: Path, database: Database, classifiers: EngineHost[ClassifyJob, ClassifyEvent]
) -> MakeModerator:
    def make(policy: str) -> Moderator:
        path = tmp_path / "policy.toml"
        path.write_text(policy)
        return Moderator(ServedPolicy(load_policy(path, tmp_path, {"chat", "other"})), classifiers, database, Metrics())

    return make


async def run(
    moderator: Moderator, context: ModerationContext, events: list[ChatEvent]
) -> tuple[list[ChatEvent], list[int]]:
    """The moderated events, and how many events the engine had sent when each of them came."""
    sent = 0

    async def engine() -> AsyncGenerator[ChatEvent, None]:
        nonlocal sent
        for event in events:
            sent += 1
            yield event

    received: list[ChatEvent] = []
    sent_before: list[int] = []
    async for event in moderator.moderate_stream(context, engine()):
        received.append(event)
        sent_before.append(sent)
    return received, sent_before


async def test_nothing_is_buffered_where_no_rule_covers_answers(
    make_moderator: MakeModerator, context: ModerationContext
) -> None:
    events = answer(TextDelta(0, "a knife"))
    moderator = make_moderator(RULE + 'stages = ["input"]')
    assert await run(moderator, context, events) == (events, [1, 2, 3, 4])


async def test_a_good_answer_passes_when_it_is_complete(
    make_moderator: MakeModerator, context: ModerationContext
) -> None:
    events = answer(TextDelta(0, "a "), TextDelta(0, "spoon"))
    assert await run(make_moderator(RULE), context, events) == (events, [1, 5, 5, 5, 5])


@pytest.mark.parametrize(
    "deltas",
    [
        (TextDelta(0, "a kn"), TextDelta(0, "ife")),
        (ToolCallDelta(0, 0, '{"what": "kn', call_id="c", name="f"), ToolCallDelta(0, 0, 'ife"}')),
    ],
)
async def test_a_breach_across_deltas_is_found_and_recorded(
    make_moderator: MakeModerator, context: ModerationContext, database: Database, deltas: tuple[ChatEvent, ...]
) -> None:
    with pytest.raises(ModerationBlocked, match="no-knives"):
        await run(make_moderator(RULE), context, answer(*deltas))
    (refusal,) = list_refusals(database)
    assert (refusal.stage, refusal.policy, refusal.call_id) == ("output", "no-knives", "chatcmpl-1")


async def test_a_worker_that_does_not_answer_is_a_timeout(
    tmp_path: Path,
    database: Database,
    classifiers: EngineHost[ClassifyJob, ClassifyEvent],
    make_moderator: MakeModerator,
    context: ModerationContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "nsfw").mkdir()
    (tmp_path / "nsfw" / "config.json").write_text('{"id2label": {"0": "bad"}}')
    monkeypatch.setattr(moderation, "ClassifyJob", partial(ClassifyJob, time_limit_s=0.01))
    with pytest.raises(TimedOut):
        await make_moderator(CLASSIFIER).check_texts(context, "input", ["hello"])
    chat = EngineHost[ChatJob | CountJob, ChatEvent]("chat", (), HostLimits(1))
    with pytest.raises(TimedOut):
        await ChatRunner(chat, Metrics(), Tracing(), database, BackgroundTasks()).count_tokens(
            CountJob("count_1", cast(Any, None), (), time_limit_s=0.01)
        )
    assert (classifiers.jobs, chat.jobs) == (0, 0)  # both jobs are cancelled
