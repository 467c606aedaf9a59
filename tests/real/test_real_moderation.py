"""A classifier that was trained lets public photographs pass."""

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from pipelines.classify.engine import ClassifyEngine
from pipelines.protocol.classify import Classified, ClassifierSpec, ClassifyJob
from pipelines.protocol.images import RawImage
from tests.real.nsfw import convert
from tests.real.packages import npm_package, python_package

pytestmark = pytest.mark.nightly
PHOTOS = ("astronaut.png", "coffee.png", "horse.png")


async def test_a_trained_classifier_lets_public_photographs_pass(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    spec = ClassifierSpec("nsfw", convert(npm_package("nsfwjs"), node, tmp_path / "nsfw"), "pictures")
    data = python_package("scikit-image") / "skimage" / "data"
    photos = [Image.open(data / name).convert("RGB") for name in PHOTOS if (data / name).exists()]
    assert photos, "the package has photographs"
    images = tuple(RawImage(*image.size, "RGB", image.tobytes()) for image in photos)
    events = [
        event async for event in ClassifyEngine(torch.device("cpu")).submit(ClassifyJob("1", spec, images=images))
    ]
    assert isinstance(events[-1], Classified), events[-1]
    assert all(scores["Neutral"] > 0.9 for scores in events[-1].scores)
    assert all(scores[label] < 0.05 for scores in events[-1].scores for label in ("Hentai", "Porn", "Sexy"))
