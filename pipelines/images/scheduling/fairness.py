"""The order of runs that wait for the device, and of images that wait to start. Pure: no clock, no thread.

**Least work first, by key.** A key's work is ranked as if the key had the device for itself: its shortest piece first,
each piece behind the key's shorter ones, and all of it behind the device time that the key has used lately. The lowest
rank goes first. So a draft overtakes a 4K image, 32 drafts of one key don't delay the one of another, and a key that
never stops loses its lead. This is shortest remaining processing time within a key, and a fair queue between keys
("virtual finish time", Demers, Keshav and Shenker 1989).

**But each ends about when equal sharing would have ended it.** Every second of the device is owed to all who wait: in
equal parts to the keys, and a key's part in equal parts to its images. An image's deadline is when it has been owed
1 + `ALLOWANCE` times its work. Once it is owed more than it has got by `ALLOWANCE` of its work, it must get its equal
share from then on, or it would miss the deadline: it is overdue. While an image is, the earliest deadline goes before
all ranks, among those that are owed `ALLOWANCE` of their work: who goes on at the rate of its share meets its deadline,
and of all orders the earliest deadline first meets what any order meets (Dertouzos 1974). So equal images end one after
another and not all at the end, and the more wait, the less each is owed: a crowd of long images takes nothing from
short ones until equal sharing would have brought the long ones halfway to their ends.

An image that ends before its share has paid for it keeps its place among those who share until then, as in the Fair
Sojourn Protocol (Friedman and Henderson 2003): else the last of many equal images would be owed ever more, and soon
overdue. But the key's next image takes the place over, and with it what was got ahead, up to `ALLOWANCE` of its own
work: else clients who send their next call when one ends could push a long image back for very long. What it does not
take over is the price: among very many, an image may miss its deadline, but hardly twice its work.

**Tiers.** A claim of the tier "priority" goes before all ranks, but not while another is overdue: so nobody waits for
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
    return claim.owed_s - claim.device_s - ALLOWANCE * _work_s(claim)


def _work_s(claim: Claim) -> float:
    return claim.device_s + claim.remaining_s


def _may_be_late(claim: Claim) -> bool:
    """Return whether a claim goes by its deadline while another is overdue. It stays so until its end."""
    return claim.owed_s > ALLOWANCE * _work_s(claim) and claim.tier != "flex"


def _by_deadline(claim: Claim) -> float:
    """Return the seconds that a claim will be owed until its deadline, and on top the seconds that it still needs: of
    equal ones, the one that has begun goes on, though estimates of its work change with each step."""
    return (1 + ALLOWANCE) * _work_s(claim) - claim.owed_s + claim.remaining_s


def in_order(claims: Iterable[ClaimType], used_s: Mapping[str, float]) -> list[ClaimType]:
    """Order all claims, the one that goes first in front; among equals as they come. `used_s` is the device time that
    each owner has used lately."""
    claims = list(claims)
    one_is_overdue = any(overdue_s(claim) > 0 and claim.tier != "flex" for claim in claims)
    late: list[ClaimType] = []
    by_owner: defaultdict[str, list[ClaimType]] = defaultdict(list)
    for claim in claims:
        if one_is_overdue and _may_be_late(claim):
            late.append(claim)
        else:
            by_owner[claim.owner].append(claim)
    ranked: list[tuple[float, ClaimType]] = []
    for owner, own in by_owner.items():
        finish_s = used_s.get(owner, 0.0)
        for claim in sorted(own, key=lambda claim: (RANK[claim.tier], claim.remaining_s)):
            finish_s += claim.remaining_s
            ranked.append((finish_s, claim))
    ranked.sort(key=lambda pair: (RANK[pair[1].tier], pair[0]))
    return [*sorted(late, key=_by_deadline), *(claim for _, claim in ranked)]


class Shares:
    """The claims of all who wait or run, each credited with its equal share of the device's work."""

    def __init__(self) -> None:
        self._claims: defaultdict[str, dict[Claim, None]] = defaultdict(dict)  # by owner
        # By owner: what each of those that have ended had got beyond its share, less what it was owed since
        self._ahead_s: defaultdict[str, list[float]] = defaultdict(list)

    def enter(self, claim: Claim) -> None:
        """Let the claim wait from now on, in the place of one that has ended if its owner has such. Nothing happens if
        it waits already, or if it is owed nothing."""
        if claim.tier == "flex" or claim in self._claims[claim.owner]:
            return
        self._claims[claim.owner][claim] = None
        if ahead_s := self._ahead_s[claim.owner]:
            least_s = min(ahead_s)
            ahead_s.remove(least_s)
            claim.owed_s -= min(least_s, ALLOWANCE * claim.remaining_s)

    def leave(self, claim: Claim) -> None:
        """Remove the claim, which needs the device no more. Nothing happens if it has not entered."""
        if claim not in self._claims[claim.owner]:
            return
        del self._claims[claim.owner][claim]
        if claim.device_s > claim.owed_s:
            self._ahead_s[claim.owner].append(claim.device_s - claim.owed_s)
        if not any(self._claims.values()):
            self._ahead_s.clear()

    def credit(self, seconds: float) -> None:
        """Count that the device was used for so long, by whomever."""
        for owners in (self._claims, self._ahead_s):
            for owner in [owner for owner, its in owners.items() if not its]:
                del owners[owner]
        sharing = self._claims.keys() | self._ahead_s.keys()
        for owner in sharing:
            claims, ahead_s = self._claims.get(owner, {}), self._ahead_s.get(owner, [])
            part_s = seconds / len(sharing) / (len(claims) + len(ahead_s))
            for claim in claims:
                claim.owed_s += part_s
            ahead_s[:] = [each_s - part_s for each_s in ahead_s if each_s > part_s]


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
