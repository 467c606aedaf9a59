"""`runtime = "auto"` at the real sizes of published checkpoints, computed on fake tensors: what it chooses fits."""

import pytest

from benchmarks.real_memory.cards import CARDS, Card, choice
from benchmarks.real_memory.networks import CHECKPOINTS
from benchmarks.real_memory.parts import measured

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", [each.name for each in CHECKPOINTS])
@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_what_is_chosen_fits_the_card(card: Card, name: str) -> None:
    assert choice(name, card).gib <= card.gib


@pytest.mark.parametrize("name", [each.name for each in CHECKPOINTS])
def test_float8_products_take_less_than_half_as_much_again_as_plain_ones(name: str) -> None:
    """Activations are quantized in their own type: float32 copies took twice as much."""
    denoiser = measured(name).denoiser
    for call, peak in denoiser["none"].peaks.items():
        assert denoiser["fp8"].peaks[call] < 1.5 * peak, call
