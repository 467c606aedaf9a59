"""Which sequences run next: they wait, are prefilled, decode together, and leave. It tracks capacity, not tensors.

A step prefills chunks of waiting prompts into free rows, then every row decodes one token: a long prompt delays the
others by a chunk, not by its whole length. Where the KV cache has no room for another token in every row, the rows at
the end of the batch are preempted: their sequences wait again, with their tokens, and are prefilled once more.
"""

import time
from collections import deque
from dataclasses import dataclass

from pipelines.chat.kv_cache import KVCache
from pipelines.chat.sequence import Sequence
from pipelines.device.failures import OutOfTime


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens of a sequence that go into `row` of the KV cache, from position `start` on."""

    sequence: Sequence
    row: int
    start: int
    tokens: list[int]


class Scheduler:
    """The sequences of one checkpoint. `running[r]` is in row r of the KV cache, the one in prefill behind the last."""

    def __init__(self, kv_cache: KVCache, max_batch: int) -> None:
        self._kv_cache = kv_cache
        self._max_batch = max_batch
        self._max_running = max_batch  # fewer for a while after a preemption
        self._waiting: deque[Sequence] = deque()
        self._prefilling: Sequence | None = None
        self.running: list[Sequence] = []

    @property
    def idle(self) -> bool:
        """Return whether no sequence waits or runs."""
        return not (self._waiting or self.running or self._prefilling)

    @property
    def scheduled(self) -> list[Sequence]:
        """Return all sequences that have a row."""
        return [*self.running, *([self._prefilling] if self._prefilling else [])]

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its prefill."""
        self._waiting.append(sequence)

    def schedule_prefill(self, max_tokens: int) -> PrefillChunk | None:
        """Return the next chunk of a prompt; None if none waits, or there is no row or no memory for it."""
        sequence = self._next_prefill() if max_tokens > 0 else None
        if sequence is None:
            return None
        if not self._reserve(len(sequence.tokens) + 1):
            self.requeue(sequence)
            return None
        start = sequence.num_cached_tokens
        return PrefillChunk(sequence, len(self.running), start, sequence.tokens[start : start + max_tokens])

    def finish_prefill(self, chunk: PrefillChunk) -> bool:
        """Note that a chunk is cached. Returns True if it was the last of its prompt: the sequence decodes from now
        on."""
        sequence = chunk.sequence
        sequence.num_cached_tokens += len(chunk.tokens)
        if sequence.num_cached_tokens < len(sequence.tokens):
            return False
        self._prefilling = None
        self.running.append(sequence)
        return True

    def schedule_decode(self) -> list[Sequence]:
        """Return the rows that decode a token now, after making room for it. Raises MemoryError."""
        if self.running:
            self.ensure_capacity()
        return self.running

    def ensure_capacity(self) -> None:
        """Make room for one more token a row, by preempting sequences. Raises MemoryError where a single row is too
        long."""
        while not self._reserve():
            if len(self.running) == 1 and not self._prefilling:
                raise MemoryError(f"{len(self.running[0].tokens)} tokens of context do not fit into memory")
            self.preempt(keep=max(1, len(self.running) // 2))

    def preempt(self, keep: int) -> None:
        """Preempt all rows but the first `keep`. Their sequences wait, and the tokens that they have written are
        prefilled with their prompts."""
        preempted = self.scheduled[keep:]
        self._max_running = max(1, keep)  # until others finish: a sequence readmitted at once would be preempted again
        self.running, self._prefilling = self.running[:keep], None
        for sequence in reversed(preempted):
            sequence.num_cached_tokens = 0
            self._waiting.appendleft(sequence)

    def requeue(self, sequence: Sequence) -> None:
        """Put a sequence back into the queue, for which there is no memory while others run. Raises MemoryError if
        there are no others."""
        if not self.running:
            raise MemoryError(f"{len(sequence.tokens)} tokens of context do not fit into memory")
        self._prefilling = None
        sequence.num_cached_tokens = 0
        self._waiting.appendleft(sequence)

    def fail_scheduled(self, error: BaseException) -> None:
        """Fail the sequences that have a row, after a failure that no row survives. Waiting ones are not affected."""
        for sequence in self.scheduled:
            sequence.request.fail(error)
        self.running.clear()
        self._prefilling = None

    def remove_ended(self) -> None:
        """Fail the sequences that have run for too long, and drop them with those that were cancelled."""
        now = time.monotonic()
        for sequence in (*self.scheduled, *self._waiting):
            if sequence.request.timed_out(now):
                sequence.request.fail(OutOfTime())
        self._waiting = deque(sequence for sequence in self._waiting if not sequence.request.done)
        if self._prefilling and self._prefilling.request.done:
            self._prefilling = None
        self.remove_finished()

    def remove_finished(self) -> None:
        """Remove the sequences that have finished. The last row moves into each row that becomes free."""
        for sequence in [sequence for sequence in self.running if sequence.finished]:
            row = self.running.index(sequence)
            last = self.running.pop()
            self._max_running = min(self._max_running + 1, self._max_batch)
            if last is not sequence:
                self._kv_cache.copy_row(len(self.running), row, last.num_cached_tokens)
                self.running[row] = last
            if self._prefilling:
                self._kv_cache.copy_row(len(self.running) + 1, len(self.running), self._prefilling.num_cached_tokens)

    def _next_prefill(self) -> Sequence | None:
        """Return the sequence whose prefill goes on, or the next that waits while there is a row."""
        if self._prefilling is None and self._waiting and len(self.running) < self._max_running:
            self._prefilling = self._waiting.popleft()
            self._prefilling.request.start()
            self._share_prefix(self._prefilling)
        return self._prefilling

    def _share_prefix(self, sequence: Sequence) -> None:
        """Copy the prompt's cache from another choice of the same request, if one has it already. The prompt's last
        token is left for the logits."""
        shared = len(sequence.request.prompt) - 1
        for row, running in enumerate(self.running):
            if running.request is sequence.request and self._reserve(len(sequence.tokens) + 1):
                self._kv_cache.copy_row(row, len(self.running), shared)
                sequence.num_cached_tokens = shared
                return

    def _reserve(self, prefill_tokens: int = 0) -> bool:
        """Reserve room for the rows, each with one more token, and for the sequence in prefill with so many. Returns
        whether there is room."""
        lengths = [len(sequence.tokens) for sequence in self.running]
        if self._prefilling:
            lengths.append(max(prefill_tokens, self._prefilling.num_cached_tokens))
        return self._kv_cache.reserve(len(lengths), max(lengths))
