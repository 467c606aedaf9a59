"""What the shipped image starters get right, in wordings and scenes that training never saw. Floors, not aims."""

from collections.abc import Mapping
from typing import Final

import pytest
from rich.progress import Progress

from pipelines.starter.measuring.__main__ import Gallery, measure_image_starter, starter_models
from pipelines.starter.measuring.report import Measured
from tests.harness import REPOSITORY

COUNT: Final = 24  # captions, and as many edits
LARGEST_BYTES: Final = 16_000_000
AIMS: Final = {
    "starter-alpha": {"sky": 0.9, "ground": 0.9, "object colour": 0.9, "place": 0.85},
    "starter-beta": {"sky": 0.9, "ground": 0.9, "object colour": 0.9, "place": 0.85, "edits": 0.85},
}
PSNR_DB: Final = 30.0
STARTERS: Final = tuple(AIMS)


@pytest.fixture(scope="module")
def measured() -> Mapping[str, Measured]:
    models = starter_models(REPOSITORY / "model_configs", REPOSITORY / "weights")
    with Progress(disable=True) as progress:
        return {model.checkpoint.name: measure_image_starter(model, COUNT, Gallery(), progress) for model in models}


@pytest.mark.parametrize("name", STARTERS)
def test_the_folder_is_small(name: str) -> None:
    files = (REPOSITORY / "weights" / name).rglob("*")
    assert sum(file.stat().st_size for file in files if file.is_file()) <= LARGEST_BYTES


@pytest.mark.parametrize("name", STARTERS)
def test_its_codec_keeps_pictures(measured: Mapping[str, Measured], name: str) -> None:
    assert measured[name].psnr_db >= PSNR_DB


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, aims in AIMS.items() for what in aims])
def test_it_draws_what_was_asked(measured: Mapping[str, Measured], name: str, what: str) -> None:
    assert measured[name].shares[what].value >= AIMS[name][what]
