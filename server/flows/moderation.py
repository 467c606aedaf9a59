"""Moderation of one call, before and after the work: the policy's words first, then its classifiers.

A breach is recorded for the operator, without the text or the picture, and refused by the policy's name. A classifier
that can't answer refuses too, as a failure of the server: nothing passes unseen.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from pipelines.protocol.chat import Admitted, ChatEvent, ReasoningDelta, TextDelta, ToolCallDelta
from pipelines.protocol.classify import Classified, ClassifyJob
from pipelines.protocol.images import EncodedImage, Failed, Picture, Started
from server.accounts.refusals import Refusal, record_refusals
from server.backends.engine_host import QueueFull
from server.errors import EngineFailure, ModerationBlocked, Overloaded, PictureBlocked, TimedOut
from server.moderation.policy import Classifier, Finding, Stage
from server.services import Services

log = structlog.stdlib.get_logger("darkroom.moderation")


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose call is looked at. `low`: it asks for OpenAI's moderation "low", which is less strict if the policy is."""

    call_id: str
    key_id: str
    endpoint: str
    model: str
    group: str
    low: bool = False


async def check_texts(services: Services, subject: Subject, stage: Stage, texts: Sequence[str]) -> None:
    """Raises ModerationBlocked for a breach; EngineFailure, Overloaded or TimedOut if a classifier does not answer."""
    policy = services.policy
    found = await asyncio.to_thread(policy.search, texts, subject.group, stage, low=subject.low)
    for classifier in () if found or not texts else policy.readers("prompts", subject.group, stage):
        job = ClassifyJob(f"mod_{uuid.uuid4().hex}", classifier.spec, texts=tuple(texts))
        found += await _judge(services, classifier, job, subject)
    await _refuse(services, subject, stage, found)


async def check_pictures(
    services: Services, subject: Subject, stage: Stage, pictures: Sequence[Picture | EncodedImage]
) -> None:
    """As check_texts, by the classifiers that read pictures."""
    found: list[Finding] = []
    for classifier in services.policy.readers("pictures", subject.group, stage) if pictures else ():
        job = ClassifyJob(f"mod_{uuid.uuid4().hex}", classifier.spec, pictures=tuple(pictures))
        found += await _judge(services, classifier, job, subject)
    await _refuse(services, subject, stage, found)


async def guarded(
    services: Services, subject: Subject, events: AsyncGenerator[ChatEvent, None]
) -> AsyncGenerator[ChatEvent, None]:
    """A chat's events. Where the policy reads what models say, nothing that is said passes before all of it was read.

    Raises ModerationBlocked, or what `events` raises.
    """
    held: list[ChatEvent] = []
    said: dict[tuple[int, str, int], str] = {}
    reads = services.policy.reads_answers(subject.group)
    async with aclosing(events):
        async for event in events:
            if not reads or isinstance(event, Admitted | Started):
                yield event
                continue
            held.append(event)
            if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta):
                part = (event.choice, type(event).__name__, event.index if isinstance(event, ToolCallDelta) else 0)
                more = event.arguments if isinstance(event, ToolCallDelta) else event.text
                said[part] = said.get(part, "") + more
        await check_texts(services, subject, "output", list(said.values()))
        for event in held:
            yield event


async def _judge(services: Services, classifier: Classifier, job: ClassifyJob, subject: Subject) -> list[Finding]:
    scored = await _classify(services, job)
    return [finding for scores in scored.scores for finding in classifier.judge(scores, low=subject.low)]


async def _classify(services: Services, job: ClassifyJob) -> Classified:
    try:
        events = services.classifiers.submit(job)
    except QueueFull as error:
        raise Overloaded(f"The server is busy: {error}.", error.retry_after_s) from error
    try:
        async with asyncio.timeout(job.time_limit_s):
            async for event in events:
                if isinstance(event, Classified):
                    return event
                if isinstance(event, Failed):
                    log.error("classifier failed", classifier=job.checkpoint.name, code=event.code, detail=event.detail)
    except TimeoutError as error:
        log.warning("classifier took too long", classifier=job.checkpoint.name)
        raise TimedOut("The request could not be moderated in time; nothing was charged.") from error
    finally:
        services.classifiers.cancel(job.id)
    raise EngineFailure("The request could not be moderated, so it was not run; nothing was charged.")


async def _refuse(services: Services, subject: Subject, stage: Stage, found: Sequence[Finding]) -> None:
    if not found:
        return
    policies = list(dict.fromkeys(finding.policy for finding in found))
    log.warning("refused by moderation", call=subject.call_id, key=subject.key_id, stage=stage, policies=policies)
    now = datetime.now(UTC)
    refusals = [_refusal(subject, stage, finding, now) for finding in dict.fromkeys(found)]
    await asyncio.to_thread(record_refusals, services.database, refusals)
    what = "Your request was" if stage == "input" else "What came of your request was"
    message = (
        f"{what} rejected by this server's safety policy: {', '.join(policies)}. Nothing was charged. "
        "Please change what you ask for."
    )
    blocked = PictureBlocked if "images" in subject.endpoint else ModerationBlocked
    raise blocked(message, stage, list(dict.fromkeys(finding.category for finding in found)))


def _refusal(subject: Subject, stage: Stage, finding: Finding, now: datetime) -> Refusal:
    return Refusal(
        call_id=subject.call_id,
        key_id=subject.key_id,
        endpoint=subject.endpoint,
        model=subject.model,
        stage=stage,
        policy=finding.policy,
        category=finding.category,
        evidence=finding.evidence,
        created_at=now,
    )
