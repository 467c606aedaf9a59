"""What rounds that alternate say of two things: by how much one takes longer, and what can't be told. Pure.

Each round of one is compared with the round of the other beside it, so that a machine that gets slower in between slows
both. The median of the ratios counts, and its interval is one of the sorted ratios themselves (the sign test's), which
holds for noise of any shape.
"""

import math
from dataclasses import dataclass
from statistics import median
from typing import Final

CONFIDENCE: Final = 0.99  # of each interval: of ten comparisons of equal things one in ten is wrong somewhere
WANTED: Final = 0.03  # the change that should be seen
FEWEST_PAIRS: Final = 8  # that have an interval of this confidence
MOST_PAIRS: Final = 24


@dataclass(frozen=True, slots=True)
class Comparison:
    """Seconds of a new version against those of a base, in pairs of rounds."""

    name: str
    base_s: tuple[float, ...]
    new_s: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Return the ratio of each pair, sorted."""
        return sorted(new / base for new, base in zip(self.new_s, self.base_s, strict=True))

    @property
    def ratio(self) -> float:
        """Return the median ratio of a pair: above 1 the new version is slower."""
        return median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """Return between which ratios the true median lies."""
        left_out, ratios = _left_out(len(self.ratios)), self.ratios
        return (0.0, math.inf) if left_out is None else (ratios[left_out], ratios[-1 - left_out])

    @property
    def is_settled(self) -> bool:
        """Return whether more pairs are not needed: the interval is narrow enough for the wanted change. What it says
        is not asked: who asks until there is a difference finds one between equal things."""
        low, high = self.interval
        return high - low <= WANTED

    @property
    def verdict(self) -> str:
        """Return what can be said, for people."""
        low, high = self.interval
        if low > 1 or high < 1:
            least, most = sorted((abs(low - 1), abs(high - 1)))
            return f"{_percent(abs(self.ratio - 1))} {'slower' if low > 1 else 'faster'} ({_percent(least, most)})"
        unseen = max(high - 1, 1 - low)
        if unseen <= WANTED:
            return f"no difference seen (one of {_percent(unseen)} would have been)"
        if math.isinf(unseen):
            return f"can't be told: {len(self.ratios)} pairs, and {FEWEST_PAIRS} are needed"
        return f"no difference seen, but one of {_percent(WANTED)} can't be on this machine now: {_percent(unseen)} can"


def _left_out(count: int) -> int | None:
    """Return how many of so many sorted ratios lie outside the interval at each end; None if there are too few. The
    median of the truth lies outside with the chance that as few of so many coins show heads."""
    outside, left_out = 0.0, None
    for heads in range((count + 1) // 2):
        outside += 2 * math.comb(count, heads) / 2.0**count
        if outside > 1 - CONFIDENCE:
            break
        left_out = heads
    return left_out


def _percent(*parts: float) -> str:
    return " to ".join(f"{100 * part:.1f}" for part in parts) + " %"
