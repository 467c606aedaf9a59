"""Whose turn it is among the keys that have sequences on one checkpoint: the key's that has got the fewest tokens.

Tokens are counted, not seconds: a prompt's once, and each of an answer as much as several of a prompt, since it takes a
pass of its own. A key that comes, or comes back, begins with as many as the one that has the fewest: time without a
request earns nothing, and what a key had for itself while nobody else was there is not held against it for long.
"""

from collections.abc import Collection
from typing import Final

from pipelines.chat.steps.sequence import Sequence
from pipelines.protocol.tiers import RANK

ANSWER_TOKEN: Final = 4  # tokens of a prompt that one of an answer counts for


class TokenCounts:
    """How many tokens each key has got. Sequences are compared by `turn`: the least goes first."""

    def __init__(self) -> None:
        self._got: dict[str, int] = {}
        self._came = 0  # sequences so far

    def arrive(self, sequence: Sequence, present: Collection[Sequence]) -> None:
        """Give a sequence its place behind those that have come, and its key the count that it begins with. `present`
        are the other sequences that wait or run."""
        self._came += 1
        sequence.came = self._came
        owners, owner = {each.owner for each in present}, sequence.owner
        least = min((self._got[each] for each in owners), default=0)
        self._got = {each: got for each, got in self._got.items() if each in owners or got > least}
        if owner not in owners:
            self._got[owner] = max(self._got.get(owner, 0), least)

    def add(self, sequence: Sequence, *, prompt: int = 0, answer: int = 0) -> None:
        """Count tokens that a sequence, which waits or runs, has got: so many of its prompt, and of its answer."""
        self._got[sequence.owner] += prompt + ANSWER_TOKEN * answer

    def turn(self, sequence: Sequence) -> tuple[int, int, int]:
        """Return what is least for the sequence that goes first: by tier, what its key has got, and when it came."""
        return tier_rank(sequence), self._got[sequence.owner], sequence.came


def tier_rank(sequence: Sequence) -> int:
    """Return the place of a sequence's tier."""
    return RANK[sequence.request.job.tier]
