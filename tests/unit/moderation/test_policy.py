"""The policy: what it finds, for which groups, and which policy files are refused."""

import json
from pathlib import Path

import pytest

from server.moderation.matching import normalise
from server.moderation.policy import Policy, PolicyError, load_policy

GROUPS = ("alpha-group", "beta-group")
RULES = """
[[rules]]
name     = "no-weapons"
category = "violence"
terms    = ["assault rifle", "刀"]
patterns = ['ak-?47']

[[rules]]
name     = "no-logos"
category = "brands"
terms    = ["acme"]
groups   = ["beta-group"]
on_low   = false
"""
CLASSIFIER = """
[[classifiers]]
reads      = "prompts"
checkpoint = "toxicity"
stages     = ["input"]
[classifiers.labels.toxic]
policy        = "no-abuse"
category      = "harassment"
threshold     = 0.5
low_threshold = 0.9
"""


def policy(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    (tmp_path / "toxicity").mkdir(exist_ok=True)
    (tmp_path / "toxicity" / "config.json").write_text(json.dumps({"id2label": {"0": "fine", "1": "toxic"}}))
    return load_policy(path, tmp_path, GROUPS)


@pytest.mark.parametrize(
    "text",
    [
        "an Assault Rifle on a table",
        "an assault\n  rifle.",
        "ＡＳＳＡＵＬＴ rifle",
        "an as\u200bsault ri\u00adfle",
        "an AK47",
        "ak-47!",
        "一把刀在桌子上",
    ],
)
def test_a_term_is_found_in_any_case_width_and_spacing(tmp_path: Path, text: str) -> None:
    findings = policy(tmp_path, RULES).search([text], "alpha-group", "input", low=False)
    assert [(finding.policy, finding.category) for finding in findings] == [("no-weapons", "violence")]


@pytest.mark.parametrize("text", ["an assault trifle", "assault riflemen", "a boat", ""])
def test_other_texts_pass(tmp_path: Path, text: str) -> None:
    assert policy(tmp_path, RULES).search([text], "alpha-group", "input", low=False) == []


def test_a_rule_applies_to_its_groups_and_not_on_low(tmp_path: Path) -> None:
    rules = policy(tmp_path, RULES)
    assert rules.search(["acme"], "beta-group", "input", low=False)
    assert not rules.search(["acme"], "alpha-group", "input", low=False)
    assert not rules.search(["acme"], "beta-group", "input", low=True)


def test_a_classifier_applies_its_thresholds(tmp_path: Path) -> None:
    (classifier,) = policy(tmp_path, CLASSIFIER).classifiers
    assert not list(classifier.evaluate({"fine": 0.6, "toxic": 0.4}, low=False))
    (finding,) = classifier.evaluate({"fine": 0.3, "toxic": 0.7}, low=False)
    assert (finding.policy, finding.evidence) == ("no-abuse", "toxicity: toxic 0.700")
    assert not list(classifier.evaluate({"fine": 0.3, "toxic": 0.7}, low=True))


def test_a_classifier_applies_to_its_stage_only(tmp_path: Path) -> None:
    loaded = policy(tmp_path, CLASSIFIER)
    assert loaded.classifiers_for("prompts", "alpha-group", "input")
    assert not loaded.classifiers_for("prompts", "alpha-group", "output")
    assert not loaded.classifiers_for("pictures", "alpha-group", "input")


def test_without_a_file_nothing_is_refused(tmp_path: Path) -> None:
    assert load_policy(None, tmp_path, GROUPS).search(["ak47"], "alpha-group", "input", low=False) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (RULES.replace("beta-group", "gamma"), "'gamma' is no group"),
        (RULES.replace("ak-?47", "(ak"), "not a regular expression"),
        (RULES.replace("ak-?47", "x*"), "every call would be refused"),
        (RULES.replace("patterns", "paterns"), "unknown key"),
        ('[[rules]]\nname = "a"\ncategory = "b"', "it blocks nothing"),
        (RULES.replace("acme", " \u200b"), "visible character"),
        (CLASSIFIER.replace('"toxicity"', '"elsewhere"'), "no transformers folder"),
        (CLASSIFIER.replace("labels.toxic", "labels.rude"), "no such label; it has fine, toxic"),
        (CLASSIFIER.replace("0.5", "1.5"), "threshold"),
    ],
)
def test_an_invalid_policy_is_refused_with_a_message(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(PolicyError, match=fault.replace("(", r"\(")):
        policy(tmp_path, text)


def test_normalising_collapses_case_and_spaces() -> None:
    assert normalise("  A red\tBoat ") == "a red boat"
