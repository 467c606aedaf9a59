"""The shipped demo checkpoints: small enough for a wheel, in half precision, and with a model card."""

from pathlib import Path

import pytest
from safetensors import safe_open

WEIGHTS = Path(__file__).parents[3] / "weights"
LARGEST_BYTES = {"starter-alpha": 16_000_000, "starter-beta": 16_000_000, "starter-chat": 8_000_000}


@pytest.mark.parametrize("name", LARGEST_BYTES)
def test_the_folder_is_small_and_says_what_it_is(name: str) -> None:
    assert sum(file.stat().st_size for file in (WEIGHTS / name).rglob("*")) <= LARGEST_BYTES[name]
    assert (WEIGHTS / name / "README.md").exists()


@pytest.mark.parametrize("name", LARGEST_BYTES)
def test_its_weights_are_in_half_precision(name: str) -> None:
    for file in (WEIGHTS / name).rglob("*.safetensors"):
        with safe_open(file, "pt") as weights:
            kinds = {weights.get_slice(key).get_dtype() for key in weights.keys()}  # noqa: SIM118
        assert kinds - {"I64"} == {"F16"}  # I64 counts batches
