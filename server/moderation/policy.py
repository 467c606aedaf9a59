"""The policy file: blocked terms and patterns, and classifiers, as strict TOML.

```toml
[[rules]]
name     = "no-weapons"            # callers see this name
category = "violence"              # OpenAI's categories, or words of your own
terms    = ["assault rifle"]       # whole words, however they are spelt (server.moderation.matching)
patterns = ['ak-?47']              # regular expressions on the same normalised text: lower case, single spaces
groups   = ["beta-image-per-call"] # default: every group
on_low   = false                   # default true: also when a call says moderation "low"

[[classifiers]]
reads      = "prompts"             # or "images"
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from pipelines.checkpoints.folder.versions import files_version
from pipelines.protocol.classify import ClassifierSpec, Reads
from server.catalog.toml import Strict, read_toml
from server.errors import StartError
from server.moderation.matching import Expression, SearchedTexts, skeleton

Stage = Literal["input", "output"]
VersionOf = Callable[[Sequence[Path]], str]
BOTH: frozenset[Stage] = frozenset({"input", "output"})


class PolicyError(StartError):
    """An invalid policy file; one line for each error."""


def _check_pattern(pattern: str) -> str:
    try:
        matches_empty = re.compile(pattern).search("") is not None
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    if matches_empty:
        raise ValueError("it matches the empty text, so every call would be refused")
    return pattern


def _check_term(term: str) -> str:
    if not skeleton(term):
        raise ValueError("a term needs a visible character")
    return term


Name = Annotated[str, Field(min_length=1, max_length=100)]
Score = Annotated[float, Field(gt=0, le=1)]


class RuleTable(Strict):
    """A `[[rules]]` table: blocked words and patterns under one name."""

    name: Name
    category: Name
    terms: list[Annotated[str, AfterValidator(_check_term)]] = Field(default_factory=list)
    patterns: list[Annotated[str, AfterValidator(_check_pattern)]] = Field(default_factory=list)
    groups: list[str] | None = None
    stages: Annotated[list[Stage], Field(min_length=1)] | None = None
    on_low: bool = True

    @model_validator(mode="after")
    def _check_not_empty(self) -> "RuleTable":
        if not self.terms and not self.patterns:
            raise ValueError("it blocks nothing: give terms or patterns")
        return self


class LabelTable(Strict):
    """A `[classifiers.labels.NAME]` table: the policy that a label breaches by a score at or above the threshold, or,
    of a call that asks for less, the low one."""

    policy: Name
    category: Name
    threshold: Score
    low_threshold: Score | None = None


class ClassifierTable(Strict):
    """A `[[classifiers]]` table."""

    reads: Reads
    checkpoint: Annotated[str, Field(min_length=1)]
    labels: Annotated[dict[str, LabelTable], Field(min_length=1)]
    groups: list[str] | None = None
    stages: Annotated[list[Stage], Field(min_length=1)] | None = None


class PolicyFile(Strict):
    """The whole policy file."""

    rules: list[RuleTable] = Field(default_factory=list)
    classifiers: list[ClassifierTable] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scope:
    """The groups and stages that a rule or classifier applies to. `groups` None is all groups."""

    groups: frozenset[str] | None
    stages: frozenset[Stage]

    def covers(self, group: str, stage: Stage) -> bool:
        """Return whether the rule or classifier applies to a group's call at a stage."""
        return stage in self.stages and (self.groups is None or group in self.groups)

    def covers_any(self, groups: frozenset[str]) -> bool:
        """Return whether the rule or classifier applies to a call of any of these groups, at any stage."""
        return self.groups is None or not self.groups.isdisjoint(groups)


@dataclass(frozen=True, slots=True)
class Finding:
    """A breach of the policy. `evidence` is for the operator only."""

    policy: str
    category: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Blocked words and patterns, compiled into one expression."""

    name: str
    category: str
    scope: Scope
    on_low: bool
    expression: Expression


@dataclass(frozen=True, slots=True)
class Classifier:
    """A checkpoint, and the policies of its labels."""

    spec: ClassifierSpec
    scope: Scope
    labels: Mapping[str, LabelTable]

    def evaluate(self, scores: Mapping[str, float], *, low: bool) -> Iterator[Finding]:
        """Yield the breaches in the scores of one text or image."""
        for name, label in self.labels.items():
            if scores[name] >= ((low and label.low_threshold) or label.threshold):
                yield Finding(label.policy, label.category, f"{self.spec.name}: {name} {scores[name]:.3f}")


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules and classifiers; none without a policy file."""

    rules: tuple[Rule, ...] = ()
    classifiers: tuple[Classifier, ...] = ()

    @property
    def checkpoints(self) -> tuple[ClassifierSpec, ...]:
        """Return the checkpoints of all classifiers, each once."""
        return tuple(dict.fromkeys(classifier.spec for classifier in self.classifiers))

    def search(self, texts: Iterable[str], group: str, stage: Stage, *, low: bool) -> list[Finding]:
        """Find the breaches of the rules. Slow for long texts: call it in a thread."""
        rules = [rule for rule in self.rules if rule.scope.covers(group, stage) and (rule.on_low or not low)]
        if not rules:
            return []
        searched = SearchedTexts.of(list(texts))
        matches = ((rule, rule.expression.search(searched)) for rule in rules)
        return [Finding(rule.name, rule.category, f"'{match}'") for rule, match in matches if match]

    def classifiers_for(self, reads: Reads, group: str, stage: Stage) -> tuple[Classifier, ...]:
        """Return the classifiers that apply to this kind of input."""
        return tuple(c for c in self.classifiers if c.spec.reads == reads and c.scope.covers(group, stage))

    def moderates_output(self, group: str) -> bool:
        """Return whether the text output of this group's models is moderated."""
        rules = any(rule.scope.covers(group, "output") for rule in self.rules)
        return rules or bool(self.classifiers_for("prompts", group, "output"))


def load_policy(
    path: Path | None, weights: Path, groups: Iterable[str], version_of: VersionOf = files_version
) -> Policy:
    """Read the policy file; an empty policy without one. `version_of` tells what is in a classifier's folder. Raises
    PolicyError with every error in it."""
    if path is None:
        return Policy()
    errors: list[str] = []
    file = read_toml(path, PolicyFile, errors)
    if file is not None:
        errors += _unknown_groups(path, file, frozenset(groups))
        for index, table in enumerate(file.classifiers):
            location = f"{path}: classifiers[{index}]"
            errors += [f"{location}.{error}" for error in _checkpoint_errors(table, weights / table.checkpoint)]
    if file is None or errors:
        raise PolicyError("\n".join(errors))
    return Policy(
        tuple(_rule(table) for table in file.rules),
        tuple(_classifier(table, weights / table.checkpoint, version_of) for table in file.classifiers),
    )


def _unknown_groups(path: Path, file: PolicyFile, known: frozenset[str]) -> Iterator[str]:
    sections: tuple[tuple[str, Sequence[RuleTable | ClassifierTable]], ...] = (
        ("rules", file.rules),
        ("classifiers", file.classifiers),
    )
    for kind, tables in sections:
        for index, table in enumerate(tables):
            for group in set(table.groups or ()) - known:
                expected = ", ".join(sorted(known))
                yield f"{path}: {kind}[{index}].groups: {group!r} is no group of the catalog, which has {expected}"


def _checkpoint_errors(table: ClassifierTable, folder: Path) -> Iterator[str]:
    try:
        config = json.loads((folder / "config.json").read_text())
        known = set(config["id2label"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        yield f"checkpoint: {folder} is no transformers folder with labels in its config.json ({error})"
        return
    for name in set(table.labels) - known:
        yield f"labels.{name}: the checkpoint has no such label; it has {', '.join(sorted(known))}"


def _rule(table: RuleTable) -> Rule:
    expression = Expression(table.terms, table.patterns)
    return Rule(table.name, table.category, _scope(table.groups, table.stages), table.on_low, expression)


def _classifier(table: ClassifierTable, folder: Path, version_of: VersionOf) -> Classifier:
    spec = ClassifierSpec(table.checkpoint, folder, table.reads, version_of([folder]))
    return Classifier(spec, _scope(table.groups, table.stages), table.labels)


def _scope(groups: list[str] | None, stages: list[Stage] | None) -> Scope:
    return Scope(None if groups is None else frozenset(groups), BOTH if stages is None else frozenset(stages))
