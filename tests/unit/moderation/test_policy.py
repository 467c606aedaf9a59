"""The policy: what it finds, for which groups, and which policy files are refused."""

import json
from pathlib import Path

import pytest

from server.moderation.matching import IGNORABLE, normalise, skeleton
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
        "an \u0430ss\u0430ult rifl\u0435",  # Cyrillic
        "an \u03b1ssault rifle",  # Greek
        "an a\u0301ssau\u0308lt rifle",
        "an ässault riflé",
        "an assault-rifle",
        "an assault_rifle",
        "an assaultrifle",
        "an a.s.s.a.u.l.t rifle",
        "an a_s_s_a_u_l_t rifle",
        "a s s a u l t r i f l e",
        "an 𝐚𝐬𝐬𝐚𝐮𝐥𝐭 rifle",
        "an \u0430k-47",
    ],
)
def test_a_term_is_found_however_it_is_spelt(tmp_path: Path, text: str) -> None:
    findings = policy(tmp_path, RULES).search([text], "alpha-group", "input", low=False)
    assert [(finding.policy, finding.category) for finding in findings] == [("no-weapons", "violence")]


@pytest.mark.parametrize(
    "character", [*sorted(IGNORABLE)[::97], "\u034f", "\ufe0f", "\u3164", "\u17b4", "\u180b", "\u2800"]
)
def test_a_character_that_is_not_shown_hides_nothing(tmp_path: Path, character: str) -> None:
    text = f"an ass{character}ault ri{character}fle"
    assert policy(tmp_path, RULES).search([text], "alpha-group", "input", low=False)


@pytest.mark.parametrize(
    "texts", [["an assault", "rifle"], ["an assau", "lt rifle"], ["a boat", "one ak", "-47 and more", "a house"]]
)
def test_a_term_is_found_over_several_texts(tmp_path: Path, texts: list[str]) -> None:
    assert policy(tmp_path, RULES).search(texts, "alpha-group", "input", low=False)


def test_a_term_of_another_script_is_found_too(tmp_path: Path) -> None:
    rules = RULES.replace('"刀"', '"нож", "épée"')
    for text in ("острый нож", "une épée", "une epee", "une e\u0301pe\u0301e"):
        assert policy(tmp_path, rules).search([text], "alpha-group", "input", low=False)


def test_a_long_run_of_punctuation_is_searched_in_time(tmp_path: Path) -> None:
    """A regular expression that backtracks would need hours."""
    rules = policy(tmp_path, RULES)
    assert rules.search(["assault" + "._" * 100_000 + " a.s.s" * 20_000], "alpha-group", "input", low=False) == []


def test_a_skeleton_is_its_own_skeleton() -> None:
    for text in ("Ünïcödé ｗｉｄｅ", "\u0430\u0455\u03c1", "ﬁne", "İstanbul", "刀", "e\u0301"):
        assert skeleton(skeleton(text)) == skeleton(text)


@pytest.mark.parametrize(
    "text", ["an assault trifle", "assault riflemen", "a boat", "", "the ass ault rif le", "as sault rifle"]
)
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
