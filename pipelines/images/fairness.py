"""Who goes first, among runs that wait for the device and among pictures that wait to start. Pure.

A key's work is ranked as if the key had the device for itself: its shortest piece first, each piece behind the key's
shorter ones, and all of it behind what the key has used of the device lately. The lowest rank goes first. So a draft
overtakes a 4K picture, 32 drafts of one key don't delay the one of another, and a key that never stops loses its lead.
This is shortest remaining processing time within a key, and a fair queue between keys ("virtual finish time", Demers,
Keshav and Shenker 1989).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

MEMORY_S = 60.0  # after which a key's use of the device counts 1/e

Item = TypeVar("Item")


class RecentUse:
    """Device seconds that each key has used, with old use forgotten exponentially."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}  # by key: seconds, and when they were counted

    def add(self, owner: str, seconds: float, now: float) -> None:
        """`owner` has used the device."""
        self._used[owner] = (self.of(owner, now) + seconds, now)

    def of(self, owner: str, now: float) -> float:
        """Seconds, at most MEMORY_S and a little."""
        seconds, counted_at = self._used.get(owner, (0.0, now))
        return seconds * math.exp(-(now - counted_at) / MEMORY_S)

    def forget_idle(self, now: float) -> None:
        """Drop keys whose use no longer counts."""
        self._used = {owner: used for owner, used in self._used.items() if self.of(owner, now) > 0.01}


def rank(
    items: Iterable[Item], owner: Callable[[Item], str], work_s: Callable[[Item], float], used_s: Mapping[str, float]
) -> list[tuple[float, Item]]:
    """Each item with its rank in seconds, lowest first; items of equal rank in the order given.

    `used_s` is what each owner has used lately.
    """
    by_owner: defaultdict[str, list[Item]] = defaultdict(list)
    for item in items:
        by_owner[owner(item)].append(item)
    ranked: list[tuple[float, Item]] = []
    for name, own in by_owner.items():
        finish_s = used_s.get(name, 0.0)
        for item in sorted(own, key=work_s):
            finish_s += work_s(item)
            ranked.append((finish_s, item))
    return sorted(ranked, key=lambda pair: pair[0])
