"""Classifiers score texts of any length, and images."""

import asyncio
from pathlib import Path

import pytest

from pipelines.classify.engine import ClassifyEngine, load_classifier
from pipelines.protocol.classify import Classified, ClassifierSpec, ClassifyEvent, ClassifyJob
from pipelines.protocol.images import Failed, RawImage
from tests.engines.device import DEVICE
from tests.support.tiny_classifiers import make_image_classifier, make_text_classifier


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> ClassifierSpec:
    return ClassifierSpec("blades", make_text_classifier(tmp_path_factory.mktemp("t") / "blades"), "prompts")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ClassifierSpec:
    return ClassifierSpec("grim", make_image_classifier(tmp_path_factory.mktemp("p") / "grim"), "pictures")


async def last_event(engine: ClassifyEngine, job: ClassifyJob) -> ClassifyEvent:
    return [event async for event in engine.submit(job)][-1]


async def test_a_text_is_scored_by_its_words(texts: ClassifierSpec) -> None:
    job = ClassifyJob("1", texts, texts=("a red boat", "a boat with a knife"))
    event = await last_event(ClassifyEngine(DEVICE), job)
    assert isinstance(event, Classified)
    harmless, blade = (scores["blade"] for scores in event.scores)
    assert harmless < 0.2
    assert blade > 0.8


def test_a_word_in_the_middle_of_a_long_text_is_found(texts: ClassifierSpec) -> None:
    classifier = load_classifier(texts, DEVICE)
    long = " ".join(["a tree"] * 500)
    assert classifier.score_text(long)["blade"] < 0.5
    assert classifier.score_text(f"{long} knife {long}")["blade"] > 0.5
    assert classifier.score_text("")["blade"] < 1


async def test_an_image_is_scored_by_label(images: ClassifierSpec) -> None:
    image = RawImage(40, 30, "RGB", bytes(40 * 30 * 3))
    event = await last_event(ClassifyEngine(DEVICE), ClassifyJob("1", images, images=(image, image)))
    assert isinstance(event, Classified)
    assert [scores["grim"] for scores in event.scores] == pytest.approx([0.9, 0.9])


async def test_a_cancelled_job_is_skipped(texts: ClassifierSpec) -> None:
    engine = ClassifyEngine(DEVICE)
    events = engine.submit(ClassifyJob("1", texts, texts=("a boat",)))
    await anext(events)
    engine.cancel("1")
    event = await anext(events)
    assert isinstance(event, Failed)
    assert event.code == "cancelled"
    await asyncio.gather(engine.prepare(texts))


async def test_a_folder_without_a_classifier_fails_the_job(tmp_path: Path) -> None:
    job = ClassifyJob("1", ClassifierSpec("none", tmp_path, "prompts"), texts=("a boat",))
    event = await last_event(ClassifyEngine(DEVICE), job)
    assert isinstance(event, Failed)
    assert (event.code, event.movable) == ("checkpoint_failed", "anywhere")  # its host does not try it at once again
    assert "none" in event.message
