"""What `make bench BASE=commit` says of rounds that alternate, by made-up seconds."""

import random
from collections.abc import Callable

import pytest

from benchmarks.compare import Round, paired
from benchmarks.pairs import FEWEST_PAIRS, MOST_PAIRS, Comparison


def measured(change: float, noise: float, drift: float, seed: int) -> Comparison:
    """Pairs of rounds, until they settle: the machine's speed wanders by `drift`, and each round by `noise`."""
    chance, machine = random.Random(seed), 1.0
    base_s: list[float] = []
    new_s: list[float] = []
    while True:
        machine *= 1 + chance.gauss(0, drift)
        base_s.append(machine * (1 + abs(chance.gauss(0, noise))))
        new_s.append(machine * (1 + change) * (1 + abs(chance.gauss(0, noise))))
        found = Comparison("a call", tuple(base_s), tuple(new_s))
        if len(base_s) == MOST_PAIRS or found.is_settled:
            return found


def share(is_so: Callable[[Comparison], bool], **noise: float) -> float:
    """Of 200 comparisons."""
    return sum(is_so(measured(seed=seed, **noise)) for seed in range(200)) / 200


def test_a_change_of_three_percent_is_seen_though_the_machine_drifts_by_a_tenth() -> None:
    assert share(lambda found: "slower" in found.verdict, change=0.03, noise=0.015, drift=0.1) > 0.95
    assert share(lambda found: "faster" in found.verdict, change=-0.03, noise=0.015, drift=0.1) > 0.95


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_equal_versions_hardly_ever_differ(noise: float) -> None:
    assert share(lambda found: found.verdict.startswith("no difference"), change=0.0, noise=noise, drift=0.1) > 0.97


def test_a_machine_that_is_too_noisy_is_named_as_such() -> None:
    found = measured(change=0.03, noise=0.3, drift=0.1, seed=1)
    assert len(found.ratios) == MOST_PAIRS
    assert found.verdict.startswith("no difference seen, but one of 3.0 % can't be on this machine now")


def test_a_quiet_machine_needs_few_pairs_and_says_how_small_a_change_it_would_see() -> None:
    found = measured(change=0.0, noise=0.004, drift=0.1, seed=1)
    assert len(found.ratios) < MOST_PAIRS
    assert found.verdict.startswith("no difference seen (one of ")


def test_one_round_in_which_another_program_ran_changes_nothing() -> None:
    base = [1.0 + 0.001 * number for number in range(12)]
    new = [1.05 * each for each in base]
    new[3] *= 9
    assert "5.0 % slower" in Comparison("a call", tuple(base), tuple(new)).verdict


def test_rounds_alternate_and_end_when_they_say_enough() -> None:
    measured: list[str] = []

    def measure(side: str) -> Round:
        measured.append(side)
        return Round({"base": 1.0, "new": 1.2}[side], 2.0)

    clock, processor = paired("a call", measure, "base", "new", most_pairs=24)
    assert "".join(side[0] for side in measured) == "bn" + "bnnb" * 4
    assert "20.0 % slower" in clock.verdict
    assert processor.verdict == "no difference seen (one of 0.0 % would have been)"


def test_too_few_pairs_say_nothing() -> None:
    few = FEWEST_PAIRS - 1
    assert Comparison("a call", (1.0,) * few, (2.0,) * few).verdict == "can't be told: 7 pairs, and 8 are needed"
    assert "100.0 % slower" in Comparison("a call", (1.0,) * 8, (2.0,) * 8).verdict
