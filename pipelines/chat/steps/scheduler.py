"""Which sequences run next: they wait, are prefilled, decode together, and leave. It tracks capacity, not tensors.

A step prefills chunks of waiting prompts, then every running sequence decodes one token: a long prompt delays the
others by a chunk, not by its whole length. Prompts that wait share a forward pass; one that begins like another of the
pass waits for its pages. Where the KV cache has no page for another token, the sequences that came
last are preempted: they wait again, with their tokens, and are prefilled once more.

Sequences wait in the order of their tiers, and in each as they came. Those of the tier "flex" run while nobody else
waits: they give up their places to others, and are preempted first.
"""

import time
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from pipelines.chat.model.kv_cache import KVCache
from pipelines.chat.model.kv_pages import PAGE, Lease
from pipelines.chat.model.length_rules import LengthRules
from pipelines.chat.steps.sequence import Sequence
from pipelines.device.failures import OutOfTime
from pipelines.protocol.tiers import RANK


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
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []  # between two steps one, or more after a failure
        self.running: list[Sequence] = []  # by tier; in each, those that came first are first

    @property
    def idle(self) -> bool:
        """Return whether no sequence waits or runs."""
        return not (self._waiting or self.running or self._prefilling)

    @property
    def scheduled(self) -> list[Sequence]:
        """Return all sequences that have pages, the one that is preempted last in front."""
        return sorted([*self.running, *self._prefilling], key=_rank)

    @property
    def max_waiting_tokens(self) -> int:
        """Return the most tokens that one of the waiting sequences may reach."""
        return max((len(each.request.prompt) + each.max_new_tokens for each in self._waiting), default=0)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence for prefill."""
        self._waiting.insert(bisect_right(self._waiting, _rank(sequence), key=_rank), sequence)

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
        if sequence.num_cached_tokens < len(sequence.tokens):
            return False
        self._prefilling.remove(sequence)
        insort(self.running, sequence, key=_rank)
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
            self._waiting.popleft().request.fail(error)
        for sequence in self.scheduled:
            sequence.request.fail(error)
            self._release(sequence)
        self.running.clear()
        self._prefilling.clear()

    def remove_ended(self) -> None:
        """Fail the sequences that have run for too long, and drop them with those that were cancelled."""
        now = time.monotonic()
        for sequence in (*self.scheduled, *self._waiting):
            if sequence.request.timed_out(now):
                sequence.request.fail(OutOfTime())
        self._waiting = deque(sequence for sequence in self._waiting if not sequence.request.done)
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
        """Return the next sequence that waits, while there is room for it, and for it beside the chunks of a pass."""
        if not self._waiting:
            return None
        sequence = self._waiting[0]
        if len(self.running) + len(self._prefilling) >= self._max_running and not self._preempt_flex(sequence):
            return None
        scope = (sequence.request.job.cache_scope, self._is_long(sequence))
        while True:
            sequence.lease, sequence.num_cached_tokens = self._kv_cache.begin(scope, sequence.tokens)
            if self._goes_beside(chunks, sequence) and self._kv_cache.reserve(sequence.lease, len(sequence.tokens)):
                self._prefilling.append(self._waiting.popleft())
                sequence.request.start(sequence.num_cached_tokens)
                return sequence
            self._release(sequence)
            if chunks or not self._preempt_flex(sequence):
                break
        if not self.running and not self._prefilling:
            self._prefilling.append(self._waiting.popleft())
            raise MemoryError(f"{len(sequence.tokens)} tokens of context do not fit into memory")
        return None

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
        if not self.running or _rank(self.running[-1]) < RANK["flex"] or _rank(sequence) == RANK["flex"]:
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
        self._release(sequence)
        self._waiting.insert(bisect_left(self._waiting, _rank(sequence), key=_rank), sequence)

    def _release(self, sequence: Sequence) -> None:
        self._kv_cache.release(sequence.lease)
        sequence.lease, sequence.num_cached_tokens = Lease(), 0


def _rank(sequence: Sequence) -> int:
    return RANK[sequence.request.job.tier]
