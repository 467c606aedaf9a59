"""Which sequences run next: they wait, are prefilled, decode together, and leave. It tracks capacity, not tensors.

A step prefills chunks of waiting prompts, then every running sequence decodes one token: a long prompt delays the
others by a chunk, not by its whole length. Prompts that wait share a forward pass; one that begins like another of the
pass waits for its pages. Where the KV cache has no page for another token, sequences are preempted: they wait again,
with their tokens, and are prefilled once more. The last of the key that has the most is the first to go.

Sequences wait in the order of their tiers, and in each in turns by key (`fairness`). If all rows are taken, a key whose
sequence waits gets one of a key that has two more. One that finds no memory lets smaller ones go before it, but only so
many. Those of the tier "flex" run while nobody else waits: they give up their places to others, and are preempted
first.
"""

import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from pipelines.chat.model.kv_cache import KVCache
from pipelines.chat.model.kv_pages import PAGE, Lease
from pipelines.chat.model.length_rules import LengthRules
from pipelines.chat.steps.fairness import TokenCounts, tier_rank
from pipelines.chat.steps.sequence import Sequence
from pipelines.device.failures import OutOfTime
from pipelines.protocol.images import Queued
from pipelines.protocol.tiers import RANK

MAX_PASSED: Final = 16  # smaller sequences that may go before one that finds no memory
LOOK_AHEAD: Final = 8  # sequences that are tried in a step, for one that fits


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens of a sequence, from position `start` on."""

    sequence: Sequence
    start: int
    tokens: list[int]


class Scheduler:
    """The sequences of one checkpoint: those that wait, those whose prompts are prefilled, and those that decode."""

    def __init__(
        self, kv_cache: KVCache, max_batch: int, rules: LengthRules | None = None, most_scores: int = 0
    ) -> None:
        """`most_scores`, of tokens with keys, may a pass have that prompts share: those of other prompts are computed
        for nothing. 0: none do."""
        self._kv_cache = kv_cache
        self._rules = rules or LengthRules()
        self._most_scores = most_scores
        self._max_batch = max_batch
        self._max_running = max_batch  # fewer for a while after a preemption
        self._counts = TokenCounts()
        self._waiting: list[Sequence] = []
        self._prefilling: list[Sequence] = []  # between two steps one, or more after a failure
        self.running: list[Sequence] = []  # by tier; in each, those that came first are first

    @property
    def idle(self) -> bool:
        """Return whether no sequence waits or runs."""
        return not (self._waiting or self.running or self._prefilling)

    @property
    def scheduled(self) -> list[Sequence]:
        """Return all sequences that have pages, the one that is preempted last in front: in each tier the first of
        every key, then the second of every key."""
        before: Counter[str] = Counter()
        places: list[tuple[int, int, Sequence]] = []
        for sequence in sorted([*self.running, *self._prefilling], key=tier_rank):
            places.append((tier_rank(sequence), before[sequence.owner], sequence))
            before[sequence.owner] += 1
        return [sequence for *_, sequence in sorted(places, key=lambda place: place[:2])]

    @property
    def max_waiting_tokens(self) -> int:
        """Return the most tokens that one of the waiting sequences may reach."""
        return max((len(each.request.prompt) + each.max_new_tokens for each in self._waiting), default=0)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence for prefill."""
        self._counts.arrive(sequence, [*self._waiting, *self.running, *self._prefilling])
        self._waiting.append(sequence)

    def schedule_prefill(self, max_tokens: int) -> list[PrefillChunk]:
        """Return the chunks of the next pass over prompts; none if none waits, or there is no memory for it. Raises
        MemoryError where there never will be."""
        chunks: list[PrefillChunk] = []
        begun = deque(self._prefilling)
        while max_tokens >= (PAGE if chunks else 1) and (self._most_scores or not chunks):
            sequence = begun.popleft() if begun else self._next_waiting(chunks)
            if sequence is None:
                break
            start = sequence.num_cached_tokens
            chunks.append(PrefillChunk(sequence, start, sequence.tokens[start : start + max_tokens]))
            max_tokens -= len(chunks[-1].tokens)
        return chunks

    def finish_prefill(self, chunk: PrefillChunk) -> bool:
        """Record that a chunk is in the KV cache. Returns True if it was the last of its prompt: the sequence decodes
        from now on."""
        sequence = chunk.sequence
        sequence.num_cached_tokens += len(chunk.tokens)
        self._kv_cache.share(sequence.lease, sequence.tokens, sequence.num_cached_tokens)
        self._counts.add(sequence, prompt=max(0, sequence.num_cached_tokens - sequence.counted_tokens))
        sequence.counted_tokens = max(sequence.counted_tokens, sequence.num_cached_tokens)
        sequence.request.progress()
        if sequence.num_cached_tokens < len(sequence.tokens):
            return False
        self._prefilling.remove(sequence)
        insort(self.running, sequence, key=tier_rank)
        return True

    def schedule_decode(self) -> list[list[Sequence]]:
        """Return the sequences that decode a token now, in the batches that their lengths allow, the longest first in
        each. Raises MemoryError."""
        for sequence in [each for each in self.running if self._rules.must_recompute(len(each.tokens) - 1)]:
            if sequence.num_cached_tokens:
                self.running.remove(sequence)
                self._wait_again(sequence)
        self.ensure_capacity()
        batches: dict[int, list[Sequence]] = {}
        for sequence in sorted(self.running, key=lambda each: -len(each.tokens)):
            batches.setdefault(self._rules.length_range(len(sequence.tokens) - 1), []).append(sequence)
        return list(batches.values())

    def finish_decode(self, sequences: list[Sequence]) -> None:
        """Record that the tokens of these sequences, without the last one of each, are in the KV cache."""
        for sequence in sequences:
            self._kv_cache.share(sequence.lease, sequence.tokens, sequence.num_cached_tokens)
            self._counts.add(sequence, answer=1)
            sequence.counted_tokens = len(sequence.tokens)
            sequence.request.progress()

    def ensure_capacity(self) -> None:
        """Make room for one more token of each, by preempting. Raises MemoryError where one alone is too long."""
        for sequence in list(self.running):
            while sequence in self.running and not self._kv_cache.reserve(sequence.lease, len(sequence.tokens)):
                if len(self.scheduled) == 1:
                    raise MemoryError(f"{len(sequence.tokens)} tokens of context do not fit into memory")
                self.preempt(keep=len(self.scheduled) - 1)

    def preempt(self, keep: int) -> None:
        """Preempt all scheduled sequences but the first `keep`. They wait again, and what they wrote is prefilled with
        their prompts."""
        self._max_running = max(1, keep)  # until others finish: a sequence readmitted at once would be preempted again
        for sequence in reversed(self.scheduled[keep:]):
            self._preempt(sequence)

    def fail_scheduled(self, error: BaseException) -> None:
        """Fail what is scheduled, after a failure that no sequence survives. What waits is not affected, unless nothing
        was scheduled: then the next one fails, as it would for ever."""
        if not self.scheduled and self._waiting:
            first = min(self._waiting, key=self._counts.turn)
            self._waiting.remove(first)
            first.request.fail(error)
        for sequence in self.scheduled:
            sequence.request.fail(error)
            self._release(sequence)
        self.running.clear()
        self._prefilling.clear()

    def remove_ended(self) -> None:
        """Fail the sequences that have got no further for too long, and drop them with those that were cancelled."""
        now = time.monotonic()
        for sequence in (*self.running, *self._prefilling):
            if sequence.request.timed_out(now):
                sequence.request.fail(OutOfTime())
        self._waiting = [sequence for sequence in self._waiting if not sequence.request.done]
        for sequence in [each for each in self._prefilling if each.request.done]:
            self._prefilling.remove(sequence)
            self._release(sequence)
        self.remove_finished()

    def remove_finished(self) -> None:
        """Drop the finished sequences. Their pages become free, or stay for sequences with the same prefix."""
        for sequence in [sequence for sequence in self.running if sequence.finished]:
            self.running.remove(sequence)
            self._release(sequence)
            self._max_running = min(self._max_running + 1, self._max_batch)

    def _next_waiting(self, chunks: Collection[PrefillChunk]) -> Sequence | None:
        """Return the next sequence that waits, while there is room for it, and for it beside the chunks of a pass.
        Raises MemoryError if it does not fit though nothing else runs."""
        turns = nsmallest(LOOK_AHEAD, self._waiting, key=self._counts.turn)
        if not turns or (self._is_full and not self._take_place(turns[0])):
            return None
        for place, sequence in enumerate(turns):
            if self._begin(sequence, chunks):
                for passed in turns[:place]:
                    passed.passed += 1
                return sequence
            if not self.running and not self._prefilling:
                self._waiting.remove(sequence)
                self._prefilling.append(sequence)
                raise MemoryError(f"{len(sequence.tokens)} tokens of context do not fit into memory")
            if chunks or sequence.passed >= MAX_PASSED:
                break
        return None

    @property
    def _is_full(self) -> bool:
        return len(self.running) + len(self._prefilling) >= self._max_running

    def _begin(self, sequence: Sequence, chunks: Collection[PrefillChunk]) -> bool:
        """Give a sequence that waits its pages. Return False if it may not share the pass of the chunks, or there is no
        memory."""
        scope = (sequence.request.job.cache_scope, self._is_long(sequence))
        while True:
            sequence.lease, sequence.num_cached_tokens = self._kv_cache.begin(scope, sequence.tokens)
            if self._goes_beside(chunks, sequence) and self._kv_cache.reserve(sequence.lease, len(sequence.tokens)):
                self._waiting.remove(sequence)
                self._prefilling.append(sequence)
                sequence.counted_tokens = max(sequence.counted_tokens, sequence.num_cached_tokens)
                sequence.request.start(sequence.num_cached_tokens)
                return True
            self._release(sequence)
            if chunks or not self._preempt_flex(sequence):
                return False

    def _take_place(self, sequence: Sequence) -> bool:
        """Preempt a sequence for one that goes before it: one of the tier "flex", or the last of the key that has the
        most, if that has two more than this one's. Return whether there was one."""
        if self._preempt_flex(sequence):
            return True
        rows = Counter(each.owner for each in (*self.running, *self._prefilling))
        lower = [each for each in self.running if tier_rank(each) >= tier_rank(sequence)]
        last = max(reversed(lower), key=lambda each: rows[each.owner], default=None)
        if last is None or rows[last.owner] < rows[sequence.owner] + 2:
            return False
        self._preempt(last)
        return True

    def _goes_beside(self, chunks: Collection[PrefillChunk], sequence: Sequence) -> bool:
        """Return whether a sequence may share the pass of these chunks. Not if it begins as another of them does, by a
        page or more that are not computed yet: it would find them in the next pass."""
        known = sequence.num_cached_tokens + PAGE
        begins = (sequence.lease.scope, sequence.tokens[:known])
        begun = [(chunk.sequence.lease.scope, chunk.sequence.tokens[:known]) for chunk in chunks]
        if len(sequence.tokens) > known and begins in begun:
            return False
        texts = [*(chunk.sequence for chunk in chunks), sequence]
        new = sum(len(each.tokens) - each.num_cached_tokens for each in texts)
        return not chunks or new * sum(len(each.tokens) for each in texts) <= self._most_scores

    def _preempt_flex(self, sequence: Sequence) -> bool:
        """Preempt a sequence of the tier "flex" for one of another tier. Return whether there was one."""
        if not self.running or tier_rank(self.running[-1]) < RANK["flex"] or tier_rank(sequence) == RANK["flex"]:
            return False
        self._preempt(self.running[-1])
        return True

    def _preempt(self, sequence: Sequence) -> None:
        (self._prefilling if sequence in self._prefilling else self.running).remove(sequence)
        self._wait_again(sequence)

    def _is_long(self, sequence: Sequence) -> bool:
        """Return whether it computes even its beginning in another way."""
        return self._rules.long_from is not None and len(sequence.tokens) > self._rules.long_from

    def _wait_again(self, sequence: Sequence) -> None:
        sequence.request.emit(Queued())  # whoever watches the worker knows that it may take any time
        self._release(sequence)
        self._waiting.append(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._kv_cache.release(sequence.lease)
        sequence.lease, sequence.num_cached_tokens = Lease(), 0
