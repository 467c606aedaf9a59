"""The order of runs that wait for the device, and of images that wait to start. Pure: no clock, no thread.

**Least work first, by key.** A key's work is ranked as if the key had the device for itself: its shortest piece first,
each piece behind the key's shorter ones, and all of it behind the device time that the key has used lately. The lowest
rank goes first. So a draft overtakes a 4K image, 32 drafts of one key don't delay the one of another, and a key that
never stops loses its lead. This is shortest remaining processing time within a key, and a fair queue between keys
("virtual finish time", Demers, Keshav and Shenker 1989).

**But nobody falls far behind an equal share.** Every second of the device is owed to all who wait: in equal parts to
the keys, and a key's part in equal parts to its images. An image that has got less than that by more than `ALLOWANCE`
of its own work is overdue, and the one that is furthest overdue goes before all ranks. The device time that is owed to
all adds up to the device's work, so it can always be paid: no image is behind by more than its allowance and some turns
(the harmonic number of how many wait, as when the fullest of many cups is emptied first), and each ends by the time at
which equal sharing among those who wait would have given it 1 + `ALLOWANCE` times its work. The more wait, the less
each is owed: a crowd of long images takes nothing from short ones until equal sharing would have brought the long ones
halfway to their ends. This is what the Fair Sojourn Protocol promises (Friedman and Henderson 2003), but with the
shares of those who are really there: else clients who send their next call when one ends could push a long image back
for very long.

**Tiers.** A claim of the tier "priority" goes before all ranks, but not before who is overdue: so nobody waits for
ever. One of the tier "flex" comes after all others, and is owed nothing.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from pipelines.protocol.tiers import RANK, ServiceTier

MEMORY_S = 60.0  # after which a key's use of the device counts 1/e
ALLOWANCE = 0.5  # of its own work, by which an image may be behind its equal share


class Claim(Protocol):
    """An image's claim on the device."""

    owner: str  # the API key
    owed_s: float  # its equal share of the device, since it has been waiting
    device_s: float  # what it has got
    remaining_s: float  # what it still needs, as far as is known
    tier: ServiceTier


ClaimType = TypeVar("ClaimType", bound=Claim)


def overdue_s(claim: Claim) -> float:
    """Return the seconds of the device by which a claim is behind its equal share and its allowance. Negative while it
    is not."""
    return claim.owed_s - claim.device_s - ALLOWANCE * (claim.device_s + claim.remaining_s)


def in_order(claims: Iterable[ClaimType], used_s: Mapping[str, float]) -> list[ClaimType]:
    """Order all claims, the one that goes first in front; among equals as they come. `used_s` is the device time that
    each owner has used lately."""
    overdue = []
    by_owner: defaultdict[str, list[ClaimType]] = defaultdict(list)
    for claim in claims:
        if overdue_s(claim) > 0 and claim.tier != "flex":
            overdue.append(claim)
        else:
            by_owner[claim.owner].append(claim)
    ranked: list[tuple[float, ClaimType]] = []
    for owner, own in by_owner.items():
        finish_s = used_s.get(owner, 0.0)
        for claim in sorted(own, key=lambda claim: (RANK[claim.tier], claim.remaining_s)):
            finish_s += claim.remaining_s
            ranked.append((finish_s, claim))
    ranked.sort(key=lambda pair: (RANK[pair[1].tier], pair[0]))
    return [*sorted(overdue, key=overdue_s, reverse=True), *(claim for _, claim in ranked)]


class Shares:
    """The claims of all who wait or run, each credited with its equal share of the device's work."""

    def __init__(self) -> None:
        self._claims: defaultdict[str, dict[Claim, None]] = defaultdict(dict)  # by owner

    def enter(self, claim: Claim) -> None:
        """Let the claim wait from now on. Nothing happens if it does already, or if it is owed nothing."""
        if claim.tier != "flex":
            self._claims[claim.owner][claim] = None

    def leave(self, claim: Claim) -> None:
        """Remove the claim, which needs the device no more. Nothing happens if it has not entered."""
        self._claims[claim.owner].pop(claim, None)
        if not self._claims[claim.owner]:
            del self._claims[claim.owner]

    def credit(self, seconds: float) -> None:
        """Count that the device was used for so long, by whomever."""
        for claims in self._claims.values():
            for claim in claims:
                claim.owed_s += seconds / len(self._claims) / len(claims)


class RecentUse:
    """Device seconds that each key has used, with old use forgotten exponentially."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}  # by key: seconds, and when they were counted

    def add(self, owner: str, seconds: float, now: float) -> None:
        """Add the seconds for which `owner` has used the device."""
        self._used[owner] = (self.of(owner, now) + seconds, now)

    def of(self, owner: str, now: float) -> float:
        """Return the seconds of an owner's recent use, at most MEMORY_S and a little."""
        seconds, counted_at = self._used.get(owner, (0.0, now))
        return seconds * math.exp(-(now - counted_at) / MEMORY_S)

    def delete_idle(self, now: float) -> None:
        """Drop keys whose use no longer counts."""
        self._used = {owner: used for owner, used in self._used.items() if self.of(owner, now) > 0.01}
