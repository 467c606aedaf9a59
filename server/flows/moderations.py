"""What the policy says of texts and images that nothing is drawn or written of: the judgements of POST /v1/moderations.

All rules and classifiers count that hold for any model that the key may use, before or after the work.
"""

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipelines.protocol.classify import ClassifyJob
from pipelines.protocol.images import RawImage
from server.accounts.keys import Key
from server.errors import BadRequest
from server.flows.moderation import Moderator
from server.flows.references import Reference, ReferenceLoader
from server.moderation.matching import SearchedTexts
from server.moderation.policy import Classifier
from server.schemas.chat_messages import ImagePart
from server.schemas.images import MAX_REFERENCES
from server.schemas.moderations import (
    InputType,
    Moderation,
    ModerationBody,
    ModerationResult,
    PartInputs,
    TextInputs,
)
from server.schemas.validation import check_text_length, validate
from server.state.served_policy import ServedPolicy

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
                own += _by_labels(classifier, reads, scores)
        return judged


def _by_labels(classifier: Classifier, reads: InputType, scores: Mapping[str, float]) -> list[Judgement]:
    return [
        Judgement(label.policy, label.category, reads, scores[name], scores[name] >= label.threshold)
        for name, label in classifier.labels.items()
    ]


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
