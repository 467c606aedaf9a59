"""Moderation of one call, before and after the work: the policy's terms first, then its classifiers.

A breach is recorded for the operator, without the text or the image, and refused by the policy's name. A classifier
that can't answer refuses too, as a failure of the server: nothing passes unchecked.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import structlog

from pipelines.protocol.chat import Admitted, ChatEvent, ReasoningDelta, TextDelta, ToolCallDelta
from pipelines.protocol.classify import Classified, ClassifierSpec, ClassifyEvent, ClassifyJob
from pipelines.protocol.images import EncodedImage, Failed, RawImage, Started
from server.accounts.db import Database
from server.accounts.keys import Key
from server.accounts.refusals import Refusal, record_refusals
from server.backends.engine_host import EngineHost
from server.backends.job_events import QueueFull
from server.errors import BadRequest, EngineFailure, ImageModerationBlocked, ModerationBlocked, Overloaded, TimedOut
from server.flows.references import Reference, ReferenceLoader
from server.moderation.matching import SearchedTexts
from server.moderation.policy import Classifier, Finding, Policy, Stage
from server.schemas.chat_messages import ImagePart
from server.schemas.images import MAX_REFERENCES
from server.schemas.moderation import InputType, Moderation, ModerationBody, ModerationResult, PartInputs, TextInputs
from server.schemas.validation import check_text_length, validate
from server.state.served import ServedPolicy
from server.telemetry.call_trace import current_trace
from server.telemetry.metrics import Metrics

log = structlog.stdlib.get_logger("darkroom.moderation")


@dataclass(frozen=True, slots=True)
class ModerationContext:
    """The call that is moderated. `low`: it asks for OpenAI's moderation "low", which is less strict if the policy
    is."""

    call_id: str
    key_id: str
    endpoint: str
    model: str
    group: str
    low: bool = False


class Moderator:
    """Applies the policy. Every check raises ModerationBlocked for a breach; EngineFailure, Overloaded or TimedOut if a
    classifier does not answer."""

    def __init__(
        self,
        policy: ServedPolicy,
        classifier_engine: EngineHost[ClassifyJob, ClassifyEvent],
        database: Database,
        metrics: Metrics,
    ) -> None:
        self._metrics = metrics
        self._policy = policy
        self._engine = classifier_engine
        self._database = database

    async def check_texts(self, context: ModerationContext, stage: Stage, texts: Sequence[str]) -> None:
        """Check texts of a call against the policy. Raises ModerationBlocked for a breach."""
        policy = self._policy.current
        findings = await self.search(context, stage, texts, policy, policy.checkpoints)
        await self._refuse(context, stage, findings)

    async def search(
        self,
        context: ModerationContext,
        stage: Stage,
        texts: Sequence[str],
        policy: Policy,
        loaded: Collection[ClassifierSpec],
    ) -> list[Finding]:
        """Return the breaches of this policy's rules or, without one, of its classifiers, as far as they are loaded."""
        findings = await asyncio.to_thread(policy.search, texts, context.group, stage, low=context.low)
        classifiers = policy.classifiers_for("prompts", context.group, stage)
        for classifier in classifiers if texts and not findings else ():
            if classifier.spec in loaded:
                job = ClassifyJob(f"mod_{uuid.uuid4().hex}", classifier.spec, texts=tuple(texts))
                findings += await self._judge(classifier, job, context)
        return findings

    async def check_images(
        self, context: ModerationContext, stage: Stage, images: Sequence[RawImage | EncodedImage]
    ) -> None:
        """Check images of a call with the policy's classifiers. Raises ModerationBlocked for a breach."""
        findings: list[Finding] = []
        classifiers = self._policy.current.classifiers_for("pictures", context.group, stage)
        for classifier in classifiers if images else ():
            job = ClassifyJob(f"mod_{uuid.uuid4().hex}", classifier.spec, images=tuple(images))
            findings += await self._judge(classifier, job, context)
        await self._refuse(context, stage, findings)

    async def moderate_stream(
        self, context: ModerationContext, events: AsyncGenerator[ChatEvent, None]
    ) -> AsyncGenerator[ChatEvent, None]:
        """Yield a chat's events. Where the policy covers answers, events are buffered until the whole answer is
        checked.

        Raises the errors of the checks and of `events`.
        """
        buffered: list[ChatEvent] = []
        texts: dict[tuple[int, str, int], str] = {}  # by choice, kind of delta and index of the tool call
        covers_answers = self._policy.current.moderates_output(context.group)
        async with aclosing(events):
            async for event in events:
                if not covers_answers or isinstance(event, Admitted | Started):
                    yield event
                    continue
                buffered.append(event)
                if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta):
                    part = (event.choice, type(event).__name__, event.index if isinstance(event, ToolCallDelta) else 0)
                    delta = event.arguments if isinstance(event, ToolCallDelta) else event.text
                    texts[part] = texts.get(part, "") + delta
            await self.check_texts(context, "output", list(texts.values()))
            for event in buffered:
                yield event

    async def classify(self, job: ClassifyJob) -> Classified:
        """Return the scores of a classifier. Raises EngineFailure, Overloaded and TimedOut."""
        try:
            events = self._engine.submit(job)
        except QueueFull as error:
            raise Overloaded(f"The server is busy: {error}.", error.retry_after_s) from error
        current_trace().wake_s += events.wake_s
        try:
            async with asyncio.timeout(events.limit_s(job.time_limit_s)):
                async for event in events:
                    if isinstance(event, Classified):
                        return event
                    if isinstance(event, Failed):
                        if event.code == "queue_full":
                            raise Overloaded(event.message, event.retry_after_s or 0)
                        classifier = job.checkpoint.name
                        log.error("classifier failed", classifier=classifier, code=event.code, detail=event.detail)
        except TimeoutError as error:
            log.warning("classifier timed out", classifier=job.checkpoint.name)
            raise TimedOut("The request could not be moderated in time; nothing was charged.") from error
        finally:
            self._engine.cancel(job.id)
        raise EngineFailure("The request could not be moderated, so it was not run; nothing was charged.")

    async def _judge(self, classifier: Classifier, job: ClassifyJob, context: ModerationContext) -> list[Finding]:
        classified = await self.classify(job)
        return [finding for scores in classified.scores for finding in classifier.evaluate(scores, low=context.low)]

    async def _refuse(self, context: ModerationContext, stage: Stage, findings: Sequence[Finding]) -> None:
        """Record the findings, if there are any, and raise the caller's error."""
        if not findings:
            return
        policies = list(dict.fromkeys(finding.policy for finding in findings))
        for policy in policies:
            self._metrics.moderation_refusals.labels(policy, stage).inc()
        log.warning("refused by moderation", call=context.call_id, key=context.key_id, stage=stage, policies=policies)
        call, now = (context.call_id, context.key_id, context.endpoint, context.model), datetime.now(UTC)
        refusals = [Refusal(*call, stage, **asdict(each), created_at=now) for each in dict.fromkeys(findings)]
        await self._database.in_writer(record_refusals, self._database, refusals)
        what = "Your request was" if stage == "input" else "What came of your request was"
        message = (
            f"{what} rejected by this server's safety policy: {', '.join(policies)}. Nothing was charged. "
            "Please change what you ask for."
        )
        blocked = ImageModerationBlocked if "images" in context.endpoint else ModerationBlocked
        raise blocked(message, stage, list(dict.fromkeys(finding.category for finding in findings)))


DEFAULT_MODEL = "omni-moderation-latest"
CATEGORIES = (  # OpenAI's, which its clients read by name
    "harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent", "self-harm",
    "self-harm/intent", "self-harm/instructions", "sexual", "sexual/minors", "violence", "violence/graphic",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a rule or a label says of one input: a score from 0 to 1, and whether that breaches the policy."""

    policy: str
    category: str
    reads: InputType
    score: float
    breached: bool


class Moderations:
    """Applies the policy to inputs without consequences: nothing is recorded, refused or charged."""

    def __init__(self, policy: ServedPolicy, moderator: Moderator, references: ReferenceLoader) -> None:
        self._policy = policy
        self._moderator = moderator
        self._references = references

    async def judge(self, key: Key, body: ModerationBody) -> Moderation:
        """Return the policy's result for a text, for each of several texts, or for parts together. Raises ApiError."""
        sent = body.input if isinstance(body.input, list) else [body.input]
        groups = frozenset(key.groups)
        if any(isinstance(each, Mapping) for each in sent):
            results = [await self._judge_parts(key, groups, validate(PartInputs, {"input": sent}, strict=True))]
        else:
            texts = validate(TextInputs, {"input": sent}, strict=True).input
            check_text_length(texts)
            judged = await asyncio.gather(*(asyncio.to_thread(self._by_rules, groups, [text]) for text in texts))
            labels = await self._by_classifiers(groups, "text", texts)
            results = [_result([*rules, *own]) for rules, own in zip(judged, labels, strict=True)]
        return Moderation(id=f"modr-{uuid.uuid4().hex}", model=body.model or DEFAULT_MODEL, results=results)

    async def _judge_parts(self, key: Key, groups: frozenset[str], body: PartInputs) -> ModerationResult:
        texts = [part.text for part in body.input if not isinstance(part, ImagePart)]
        check_text_length(texts)
        references = [
            Reference(f"input[{index}].image_url", part.image_url.url)
            for index, part in enumerate(body.input)
            if isinstance(part, ImagePart)
        ]
        if len(references) > MAX_REFERENCES:
            message = f"Invalid 'input': too many images. Expected at most {MAX_REFERENCES}, but got {len(references)}."
            raise BadRequest(message, param="input", code="array_above_max_length")
        images = [each.image for each in await self._references.load(key.id, references)]
        judged = await asyncio.to_thread(self._by_rules, groups, texts)
        for each in await self._by_classifiers(groups, "text", texts):
            judged += each
        for each in await self._by_classifiers(groups, "image", images):
            judged += each
        return _result(judged)

    def _by_rules(self, groups: frozenset[str], texts: Sequence[str]) -> list[Judgement]:
        """Search the texts together. Blocking."""
        rules = [rule for rule in self._policy.current.rules if rule.scope.covers_any(groups)]
        if not rules or not texts:
            return []
        searched = SearchedTexts.of(list(texts))
        found = [bool(rule.expression.search(searched)) for rule in rules]
        judged = zip(rules, found, strict=True)
        return [Judgement(rule.name, rule.category, "text", float(breached), breached) for rule, breached in judged]

    async def _by_classifiers(
        self, groups: frozenset[str], reads: InputType, inputs: Sequence[str] | Sequence[RawImage]
    ) -> list[list[Judgement]]:
        """Return the judgements of each input. Raises EngineFailure, Overloaded and TimedOut."""
        judged: list[list[Judgement]] = [[] for _ in inputs]
        for classifier in self._policy.current.classifiers if inputs else ():
            if (classifier.spec.reads == "pictures") != (reads == "image") or not classifier.scope.covers_any(groups):
                continue
            texts = tuple(each for each in inputs if isinstance(each, str))
            images = tuple(each for each in inputs if isinstance(each, RawImage))
            job = ClassifyJob(f"mod_{uuid.uuid4().hex}", classifier.spec, texts=texts, images=images)
            scored = await self._moderator.classify(job)
            for own, scores in zip(judged, scored.scores, strict=True):
                own += [
                    Judgement(label.policy, label.category, reads, scores[name], scores[name] >= label.threshold)
                    for name, label in classifier.labels.items()
                ]
        return judged


def _result(judged: Iterable[Judgement]) -> ModerationResult:
    all_of_it = list(judged)
    names = list(dict.fromkeys((*CATEGORIES, *(each.category for each in all_of_it))))
    by_category = {name: [each for each in all_of_it if each.category == name] for name in names}
    breached = [each for each in all_of_it if each.breached]
    return ModerationResult(
        flagged=bool(breached),
        categories={name: any(each.breached for each in own) for name, own in by_category.items()},
        category_scores={name: max((each.score for each in own), default=0.0) for name, own in by_category.items()},
        category_applied_input_types={
            name: sorted({each.reads for each in own}, reverse=True) for name, own in by_category.items()
        },
        policies=list(dict.fromkeys(each.policy for each in breached)),
    )
