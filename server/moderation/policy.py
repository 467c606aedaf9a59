"""The policy file: blocked terms and patterns, and classifiers, as strict TOML.

```toml
[[rules]]
name     = "no-weapons"            # callers are told this name
category = "violence"              # OpenAI's categories, or words of your own
terms    = ["assault rifle"]       # whole words, whatever their case, width or invisible characters
patterns = ['ak-?47']              # regular expressions on the same normalised text: lower case, single spaces
groups   = ["beta-image-per-call"] # default: every group
on_low   = false                   # default true: also when a call says moderation "low"

[[classifiers]]
reads      = "prompts"             # or "pictures"
checkpoint = "moderation/toxicity" # a transformers folder under the weights directory
[classifiers.labels.toxic]         # a label of its config.json
policy        = "no-abuse"
category      = "harassment"
threshold     = 0.8
low_threshold = 0.95               # default: the threshold, when a call says moderation "low"
```
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from pipelines.catalog.toml import Strict, read_toml
from pipelines.protocol.classify import ClassifierSpec, Reads
from server.errors import StartError
from server.moderation.matching import compile_rule, normalise

Stage = Literal["input", "output"]
BOTH: frozenset[Stage] = frozenset({"input", "output"})


class PolicyError(StartError):
    """Why the policy is refused, one line a fault."""


def _compiles(pattern: str) -> str:
    try:
        matches_nothing = re.compile(pattern).search("") is not None
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    if matches_nothing:
        raise ValueError("it matches the empty text, so every call would be refused")
    return pattern


def _has_text(term: str) -> str:
    if not normalise(term):
        raise ValueError("a term needs a visible character")
    return term


Name = Annotated[str, Field(min_length=1, max_length=100)]
Share = Annotated[float, Field(gt=0, le=1)]


class RuleTable(Strict):
    """Blocked words and patterns under one name."""

    name: Name
    category: Name
    terms: list[Annotated[str, AfterValidator(_has_text)]] = Field(default_factory=list)
    patterns: list[Annotated[str, AfterValidator(_compiles)]] = Field(default_factory=list)
    groups: list[str] | None = None
    stages: Annotated[list[Stage], Field(min_length=1)] | None = None
    on_low: bool = True

    @model_validator(mode="after")
    def _blocks_something(self) -> "RuleTable":
        if not self.terms and not self.patterns:
            raise ValueError("it blocks nothing: give terms or patterns")
        return self


class LabelTable(Strict):
    """What one label of a classifier means."""

    policy: Name
    category: Name
    threshold: Share
    low_threshold: Share | None = None


class ClassifierTable(Strict):
    """One classifier."""

    reads: Reads
    checkpoint: Annotated[str, Field(min_length=1)]
    labels: Annotated[dict[str, LabelTable], Field(min_length=1)]
    groups: list[str] | None = None
    stages: Annotated[list[Stage], Field(min_length=1)] | None = None


class PolicyFile(Strict):
    """The file."""

    rules: list[RuleTable] = Field(default_factory=list)
    classifiers: list[ClassifierTable] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a part of the policy holds. `groups` None is all of them."""

    groups: frozenset[str] | None
    stages: frozenset[Stage]

    def covers(self, group: str, stage: Stage) -> bool:
        """Whether it holds for a call to a model of this group, at this stage."""
        return stage in self.stages and (self.groups is None or group in self.groups)


@dataclass(frozen=True, slots=True)
class Finding:
    """A breach. `evidence` is for the operator alone."""

    policy: str
    category: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Words and patterns, compiled."""

    name: str
    category: str
    scope: Scope
    on_low: bool
    expression: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Label:
    """From this score on, the label breaches its policy."""

    policy: str
    category: str
    threshold: float
    low_threshold: float


@dataclass(frozen=True, slots=True)
class Classifier:
    """A checkpoint, and what its labels mean."""

    spec: ClassifierSpec
    scope: Scope
    labels: Mapping[str, Label]

    def judge(self, scores: Mapping[str, float], *, low: bool) -> Iterator[Finding]:
        """What the scores of one text or picture breach."""
        for name, label in self.labels.items():
            if scores[name] >= (label.low_threshold if low else label.threshold):
                yield Finding(label.policy, label.category, f"{self.spec.name}: {name} {scores[name]:.3f}")


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole of it; without a file, nothing is refused."""

    rules: tuple[Rule, ...] = ()
    classifiers: tuple[Classifier, ...] = ()

    @property
    def checkpoints(self) -> tuple[ClassifierSpec, ...]:
        """Each classifier's checkpoint once."""
        return tuple(dict.fromkeys(classifier.spec for classifier in self.classifiers))

    def search(self, texts: Iterable[str], group: str, stage: Stage, *, low: bool) -> list[Finding]:
        """What blocked words and patterns find. Slow for long texts: call it in a thread."""
        rules = [rule for rule in self.rules if rule.scope.covers(group, stage) and (rule.on_low or not low)]
        plain = [normalise(text) for text in texts] if rules else []
        found = ((rule, rule.expression.search(text)) for rule in rules for text in plain)
        return [Finding(rule.name, rule.category, f"'{match[0]}'") for rule, match in found if match]

    def readers(self, reads: Reads, group: str, stage: Stage) -> tuple[Classifier, ...]:
        """The classifiers that have a say."""
        return tuple(c for c in self.classifiers if c.spec.reads == reads and c.scope.covers(group, stage))

    def reads_answers(self, group: str) -> bool:
        """Whether what models of this group say is read."""
        rules = any(rule.scope.covers(group, "output") for rule in self.rules)
        return rules or bool(self.readers("prompts", group, "output"))


def load_policy(path: Path | None, weights: Path, groups: Iterable[str]) -> Policy:
    """The policy of a file; an empty one without a file. Raises PolicyError with every fault found."""
    if path is None:
        return Policy()
    faults: list[str] = []
    file = read_toml(path, PolicyFile, faults)
    if file is not None:
        faults += _unknown_groups(path, file, frozenset(groups))
        for index, table in enumerate(file.classifiers):
            where = f"{path}: classifiers[{index}]"
            faults += [f"{where}.{fault}" for fault in _checkpoint_faults(table, weights / table.checkpoint)]
    if file is None or faults:
        raise PolicyError("\n".join(faults))
    return Policy(
        tuple(_rule(table) for table in file.rules), tuple(_classifier(table, weights) for table in file.classifiers)
    )


def _unknown_groups(path: Path, file: PolicyFile, known: frozenset[str]) -> Iterator[str]:
    parts: tuple[tuple[str, Sequence[RuleTable | ClassifierTable]], ...] = (
        ("rules", file.rules),
        ("classifiers", file.classifiers),
    )
    for kind, tables in parts:
        for index, table in enumerate(tables):
            for group in set(table.groups or ()) - known:
                expected = ", ".join(sorted(known))
                yield f"{path}: {kind}[{index}].groups: {group!r} is no group of the catalog, which has {expected}"


def _checkpoint_faults(table: ClassifierTable, folder: Path) -> Iterator[str]:
    try:
        config = json.loads((folder / "config.json").read_text())
        known = set(config["id2label"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        yield f"checkpoint: {folder} is no transformers folder with labels in its config.json ({error})"
        return
    for name in set(table.labels) - known:
        yield f"labels.{name}: the checkpoint has no such label; it has {', '.join(sorted(known))}"


def _rule(table: RuleTable) -> Rule:
    expression = compile_rule(table.terms, table.patterns)
    return Rule(table.name, table.category, _scope(table.groups, table.stages), table.on_low, expression)


def _classifier(table: ClassifierTable, weights: Path) -> Classifier:
    labels = {
        name: Label(label.policy, label.category, label.threshold, label.low_threshold or label.threshold)
        for name, label in table.labels.items()
    }
    spec = ClassifierSpec(table.checkpoint, weights / table.checkpoint, table.reads)
    return Classifier(spec, _scope(table.groups, table.stages), labels)


def _scope(groups: list[str] | None, stages: list[Stage] | None) -> Scope:
    return Scope(None if groups is None else frozenset(groups), BOTH if stages is None else frozenset(stages))
