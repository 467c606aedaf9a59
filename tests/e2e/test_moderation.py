"""A policy of words and classifiers: a refusal is not charged, and the operator can read its reason."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.test_faults import QUICK, post
from tests.support.harness import Server, assert_clean, charges
from tests.support.tiny_classifiers import make_image_classifier, make_text_classifier

POLICY = """
[[rules]]
name     = "no-weapons"
category = "violence"
terms    = ["assault rifle"]

[[classifiers]]
reads      = "prompts"
checkpoint = "{blades}"
groups     = ["alpha-image-per-call"]
[classifiers.labels.blade]
policy    = "no-blades"
category  = "violence"
threshold = 0.5

[[classifiers]]
reads      = "pictures"
checkpoint = "{grim}"
groups     = ["beta-image-per-call"]
stages     = ["output"]
[classifiers.labels.grim]
policy        = "nothing-grim"
category      = "mood"
threshold     = 0.5
low_threshold = 0.99
"""
BETA = {"prompt": "a boat", "size": "256x256", "model": "beta-2.5-flash-image-count"}


@pytest.fixture(scope="module")
def moderated(tmp_path_factory: pytest.TempPathFactory, weights: Path, configs: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("policy")
    blades = make_text_classifier(folder / "blades")
    grim = make_image_classifier(folder / "grim")
    (folder / "policy.toml").write_text(POLICY.format(blades=blades, grim=grim))
    settings = {"moderation": str(folder / "policy.toml"), "preload": "false"}
    server = Server(tmp_path_factory.mktemp("home"), weights, configs, settings)
    yield server.start()
    server.stop()


@pytest.mark.parametrize(
    ("body", "policy", "stage"),
    [
        ({**QUICK, "prompt": "an ASSAULT  rifle"}, "no-weapons", "input"),
        ({**QUICK, "prompt": "a quiet harbour", "negative_prompt": "an \u0430ssault-rifle"}, "no-weapons", "input"),
        ({**QUICK, "prompt": "a boat with a knife"}, "no-blades", "input"),
        (BETA, "nothing-grim", "output"),
    ],
)
def test_a_refusal_names_the_policy_and_costs_nothing(
    moderated: Server, body: dict[str, Any], policy: str, stage: str
) -> None:
    files = set((moderated.home / "results").rglob("*.png"))
    charged = charges(moderated)
    answer = post(moderated, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("image_generation_user_error", "moderation_blocked", None)
    assert policy in error["message"]
    assert error["moderation_details"]["moderation_stage"] == stage
    assert set((moderated.home / "results").rglob("*.png")) == files
    assert charges(moderated) == charged
    assert_clean(moderated)
    report = moderated.darkroom("moderation", "--entries", "1").stdout
    assert policy in report
    assert stage in report
    assert body["prompt"] not in report


def test_an_allowed_prompt_is_generated(moderated: Server) -> None:
    assert post(moderated, {**QUICK, "prompt": "a red boat"}).status_code == 200
    assert post(moderated, {**BETA, "prompt": "a boat with a big tree", "moderation": "low"}).status_code == 200


def test_an_edit_is_moderated_too_and_the_sdk_raises(moderated: Server) -> None:
    from tests.e2e.test_images_by_sdk import image

    with pytest.raises(openai.BadRequestError) as raised:
        moderated.openai().images.edit(prompt="an assault rifle", image=image(256, 256))
    assert raised.value.code == "moderation_blocked"


def test_an_invalid_policy_ends_the_start_with_a_message(tmp_path: Path, weights: Path, configs: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY.format(blades="nowhere", grim="nowhere"))
    settings = {"moderation": str(tmp_path / "policy.toml")}
    answer = Server(tmp_path / "home", weights, configs, settings).darkroom("serve")
    assert answer.returncode == 1
    assert "no transformers folder" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_operators_try_and_reload_the_policy_on_the_command_line(moderated: Server) -> None:
    shown = moderated.darkroom("policy", "show").stdout
    assert "no-weapons" in shown
    tried = moderated.darkroom("policy", "test", "a boat with a knife", "--group", "alpha-image-per-call")
    assert tried.returncode == 1
    assert "no-blades (violence)" in tried.stdout
    assert "finds nothing" in moderated.darkroom("policy", "test", "a red boat").stdout
    file = Path(shown.splitlines()[0])
    before = file.read_text()
    file.write_text(before.replace("assault rifle", "green boat"))
    assert moderated.darkroom("policy", "reload").returncode == 0
    assert post(moderated, {**QUICK, "prompt": "a green boat"}).status_code == 400
    assert post(moderated, {**QUICK, "prompt": "a boat with a knife"}).status_code == 400
    file.write_text(before)
    assert moderated.darkroom("policy", "reload").returncode == 0
    assert post(moderated, {**QUICK, "prompt": "a green boat"}).status_code == 200
    assert moderated.darkroom("jobs", "list", "--json").stdout.strip() == "[]"
    missing = moderated.darkroom("jobs", "cancel", "img_none")
    assert (missing.returncode, "There is no job" in missing.stderr) == (1, True)


def test_the_moderations_route_asks_the_classifiers_of_the_keys_models(moderated: Server) -> None:
    client = moderated.openai()
    blade, harbour = client.moderations.create(input=["a boat with a knife", "a quiet harbour"]).results
    assert (blade.flagged, harbour.flagged) == (True, False)
    assert blade.category_scores.violence >= 0.5 > harbour.category_scores.violence
    picture = client.images.generate(prompt="a quiet harbour", size="256x256", model="alpha-image-2-count")  # type: ignore[arg-type]
    data = f"data:image/png;base64,{(picture.data or [])[0].b64_json}"
    parts: Any = [{"type": "text", "text": "a harbour"}, {"type": "image_url", "image_url": {"url": data}}]
    (judged,) = client.moderations.create(input=parts).results
    assert judged.to_dict()["category_applied_input_types"]["mood"] == ["image"]  # type: ignore[index]
    assert judged.flagged, "every image is grim"
