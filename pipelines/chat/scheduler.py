"""Who decodes next: sequences wait, join the batch, take a token a step, and leave.

One step puts pieces of waiting prompts into free slots, then gives every row in the batch its next token: a long prompt
delays the others by a piece, not by its whole length.

Rows share matrix products, and how those are rounded depends a little on how many rows there are: in float32 logits
agree with a row's own to about 1e-5, so a row says what it would say alone unless two tokens are as good as equally
likely. In bfloat16 such ties are common.

Each prompt is computed by itself. Of the time that answers of 64 tokens to prompts of 20 to 100 take the starter on one
thread of a CPU, the prompts are 12 % at 8 streams and 21 % at 32. Four prompts of like length in one forward pass would
save a third to half of that, 4 % and 10 % of the whole; all of them, padded to the longest, 1 %.

Why not transformers' continuous batching (5.23): it draws from one generator for everyone, so there are no seeds; of
what a request can ask for it keeps temperature, top_k and top_p apart, but no bias, penalty, grammar or likeliest
tokens. That it looks slow on a CPU is its start: some 20 s on two busy cores, with a 2 GiB cache for a model of 0.8 M
parameters. Once started it is as fast as a padded batch of `generate`. Without flash attention it compares every row's
token with every row's past, so long contexts should cost it more; that was not measured, and neither was any of this
on a GPU, where its paged attention may well be the faster one. `make bench-chat` compares the servers.
"""

import time
from collections import deque

import torch

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.cpu_threads import fewest_threads
from pipelines.chat.decode_step import take
from pipelines.chat.model_runner import BatchForward
from pipelines.chat.sequence import Sequence
from pipelines.device.failures import OutOfTime


class Batch:
    """The sequences of one checkpoint, in slots where a token takes `token_bytes`. One thread uses it."""

    def __init__(self, checkpoint: ChatCheckpoint, token_bytes: int) -> None:
        self.checkpoint = checkpoint
        self._token_bytes = token_bytes
        self._forward = BatchForward(checkpoint, most_places=0)  # until `limit` gives it some
        self._threads: int | None = None  # of a CPU, that a step is computed on; None until it was measured
        self._most_rows = checkpoint.spec.max_batch
        self._waiting: deque[Sequence] = deque()
        self._rows: list[Sequence] = []  # row r is in slot r
        self._joining: Sequence | None = None  # its prompt is going into the slot behind the last row

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._waiting or self._rows or self._joining)

    def limit(self, cache_bytes: int) -> None:
        """What the slots may take from now on."""
        self._forward.slots.most_places = cache_bytes // self._token_bytes

    def add(self, sequence: Sequence) -> None:
        """Let it wait for a slot."""
        self._waiting.append(sequence)

    def step(self, most_threads: int) -> None:
        """A token for every row, and a piece of what waits."""
        if self._threads is None:
            self._threads = fewest_threads(self._forward, self.checkpoint, most_threads)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        self._stop_late_ones()
        self._drop_unwanted()
        self._join()
        if self._rows:
            self._make_room()
            logits = self._forward.step(
                [row.tokens[-1] for row in self._rows], [len(row.tokens) - 1 for row in self._rows]
            )
            take(self._rows, logits)
            self._leave([row for row in self._rows if row.request.over or row.answer.reason])
        if self.idle:
            self._forward.slots.clear()

    def fail(self, error: BaseException) -> None:
        """After a failure that no row survives; those that wait do."""
        for sequence in self._running():
            sequence.request.fail(error)
        self._rows.clear()
        self._joining = None
        self._forward.slots.clear()

    def halve(self) -> bool:
        """After running out of memory: fewer rows for now. False when there was but one."""
        count = len(self._running())
        if count > 1:
            self._part_with(count // 2)
        return count > 1

    def _running(self) -> list[Sequence]:
        return [*self._rows, *([self._joining] if self._joining else [])]

    def _stop_late_ones(self) -> None:
        now = time.monotonic()
        for sequence in (*self._running(), *self._waiting):
            if sequence.request.out_of_time(now):
                sequence.request.fail(OutOfTime())

    def _drop_unwanted(self) -> None:
        self._waiting = deque(sequence for sequence in self._waiting if not sequence.request.over)
        if self._joining and self._joining.request.over:
            self._joining = None
        self._leave([row for row in self._rows if row.request.over])

    def _join(self) -> None:
        """Put waiting prompts into free slots, at most a piece's worth of tokens in one step."""
        budget = self._forward.piece
        while budget > 0 and (sequence := self._next()):
            piece = sequence.tokens[sequence.kept : sequence.kept + budget]
            if not self._reserve(len(sequence.tokens) + 1):
                self._put_back(sequence)
                return
            logits = self._forward.prompt(piece, len(self._rows), sequence.kept)
            sequence.kept += len(piece)
            budget -= len(piece)
            if sequence.kept == len(sequence.tokens):
                self._joining = None
                self._rows.append(sequence)
                take([sequence], logits)
                self._leave([row for row in (sequence,) if row.answer.reason])

    def _next(self) -> Sequence | None:
        """The sequence whose prompt goes on, or the next one that waits while there is a slot."""
        if self._joining is None and self._waiting and len(self._rows) < self._most_rows:
            self._joining = self._waiting.popleft()
            self._joining.request.start()
            self._share_prompt(self._joining)
        return self._joining

    def _share_prompt(self, sequence: Sequence) -> None:
        """Another choice of the same request has computed the prompt already, but for its last token."""
        shared = len(sequence.request.prompt) - 1
        for slot, row in enumerate(self._rows):
            if row.request is sequence.request and self._reserve(len(sequence.tokens) + 1):
                self._forward.slots.move(slot, len(self._rows), shared)
                sequence.kept = shared
                return

    def _put_back(self, sequence: Sequence) -> None:
        """There is no memory for it while the others run. Raises MemoryError when there are no others."""
        if not self._rows:
            raise MemoryError(f"{len(sequence.tokens)} tokens of context do not fit into memory")
        self._joining = None
        sequence.kept = 0
        self._waiting.appendleft(sequence)

    def _make_room(self) -> None:
        """Room for one more token a row. Where there is none, the rows that came last start again later."""
        while not self._reserve():
            if len(self._rows) == 1 and not self._joining:
                raise MemoryError(f"{len(self._rows[0].tokens)} tokens of context do not fit into memory")
            self._part_with(max(1, len(self._rows) // 2))

    def _reserve(self, tokens: int = 0) -> bool:
        """Room for the rows, each with a token more, and for the one that joins with so many tokens."""
        lengths = [len(row.tokens) for row in self._rows]
        if self._joining:
            lengths.append(max(tokens, self._joining.kept))
        return self._forward.slots.reserve(len(lengths), max(lengths))

    def _part_with(self, count: int) -> None:
        """Keep the first rows. The others wait, with what they have said; it is computed again when they join."""
        leavers = self._running()[count:]
        self._most_rows = max(1, count)  # until others leave: what joins again at once would have to part again
        self._rows, self._joining = self._rows[:count], None
        for sequence in reversed(leavers):
            sequence.kept = 0
            self._waiting.appendleft(sequence)

    def _leave(self, leavers: list[Sequence]) -> None:
        """The last row moves into the slot of each that leaves."""
        for row in leavers:
            slot = self._rows.index(row)
            last = self._rows.pop()
            self._most_rows = min(self._most_rows + 1, self.checkpoint.spec.max_batch)
            if last is not row:
                self._forward.slots.move(len(self._rows), slot, last.kept)
                self._rows[slot] = last
            if self._joining:
                self._forward.slots.move(len(self._rows) + 1, len(self._rows), self._joining.kept)
