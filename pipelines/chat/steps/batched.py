"""Continuous batching: the scheduler picks sequences, the model runner computes logits, `sample_step` samples.

Rows share matrix products, and how those are rounded depends a little on how many rows there are: in float32 logits
agree with a row's own to about 1e-5, so a row gets the tokens it would get alone unless two are almost equally
likely. In bfloat16 such ties are common.

Prompts that wait are prefilled in one row, one after another, without padding: on an H100, whose host takes 35 ms to
launch a pass of 28 layers, 32 prompts of 100 tokens took 1.2 s one by one.

Why not transformers' continuous batching (5.23): it samples from one generator for all requests, so there are no
seeds; per request it has temperature, top_k and top_p, but no bias, penalty, grammar or top logprobs. Why not its paged
cache and attention is in `paged_attention`. `make bench-chat` compares the servers.
"""

import time
from typing import Final

import torch

from pipelines.chat.loading.checkpoint import ChatCheckpoint
from pipelines.chat.model.kv_pages import PAGE, Lease
from pipelines.chat.model.model_runner import PACKED_SCORES, Chunk, ModelRunner
from pipelines.chat.steps.decode_step import sample_step
from pipelines.chat.steps.scheduler import Scheduler
from pipelines.chat.steps.sequence import Sequence

ROWS: Final = 8
STEPS: Final = 5  # the fastest one counts
MIN_SPEEDUP: Final = 1.3  # that more threads have to bring
LONG_STEP_S: Final = 0.02  # a step that takes this long on all threads has work for them


def choose_thread_count(runner: ModelRunner, checkpoint: ChatCheckpoint, max_threads: int) -> int:
    """Return the fewest of 1, 2, 4, ... threads whose steps are nearly as fast as the fastest.

    Call it in inference mode. It leaves the calling thread with any of these counts.
    """
    rows = min(ROWS, checkpoint.spec.max_batch)
    cache = runner.kv_cache
    if checkpoint.device.type != "cpu" or max_threads == 1 or cache.capacity_tokens < rows * PAGE:
        return max_threads
    leases = [cache.begin(None, ())[0] for _ in range(rows)]
    for lease in leases:
        cache.reserve(lease, STEPS)
    candidates = [*(1 << k for k in range(max_threads.bit_length()) if 1 << k < max_threads), max_threads]
    seconds: dict[int, float] = {}
    for count in reversed(candidates):
        seconds[count] = _step_s(runner, leases, count)
        if seconds[max_threads] > LONG_STEP_S:
            break
    for lease in leases:
        cache.release(lease)
    return next(count for count in sorted(seconds) if seconds[count] <= MIN_SPEEDUP * min(seconds.values()))


def _step_s(runner: ModelRunner, leases: list[Lease], threads: int) -> float:
    torch.set_num_threads(threads)
    durations = []
    for step in range(STEPS):
        started_at = time.perf_counter()
        runner.decode([0] * len(leases), leases, [step] * len(leases))
        durations.append(time.perf_counter() - started_at)
    return min(durations)


class BatchedGenerator:
    """Answers the sequences of one checkpoint. One thread uses it."""

    def __init__(self, checkpoint: ChatCheckpoint) -> None:
        self.checkpoint = checkpoint
        batching = checkpoint.batching
        self._token_bytes = batching.token_bytes
        self._capacity_tokens = 0  # until `set_cache_budget`
        self._runner = ModelRunner(
            checkpoint.model, checkpoint.device, checkpoint.tokens.vocab_size, batching.rules, capacity_tokens=0
        )
        self._runner.by_group = batching.by_group
        if batching.graphs:
            self._runner.use_graphs(checkpoint.spec.max_batch)
        most_scores = PACKED_SCORES.get(checkpoint.device.type, 0) if batching.packs else 0
        self._scheduler = Scheduler(
            self._runner.kv_cache, checkpoint.spec.max_batch, batching.rules, most_scores=most_scores
        )
        self._threads: int | None = None  # of the CPU; measured before the first step

    @property
    def idle(self) -> bool:
        """Return whether no sequence waits or runs."""
        return self._scheduler.idle

    @property
    def cache_budget_bytes(self) -> int:
        """Return the bytes that the KV cache may grow to."""
        return self._capacity_tokens * self._token_bytes

    def set_cache_budget(self, budget_bytes: int) -> None:
        """Set the bytes that the KV cache may grow to, as soon as no sequence runs: sequences that were admitted keep
        the room that they were promised."""
        if budget_bytes // self._token_bytes != self._capacity_tokens:
            self._capacity_tokens = budget_bytes // self._token_bytes
            self._resize()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._scheduler.add(sequence)
        self._resize()

    def step(self, max_threads: int) -> None:
        """Prefill chunks of the prompts that wait, then decode one token for every row."""
        self._set_threads(max_threads)
        self._scheduler.remove_ended()
        self._resize()
        self._prefill()
        for rows in self._scheduler.schedule_decode():
            logits = self._runner.decode(
                [row.tokens[-1] for row in rows], [row.lease for row in rows], [len(row.tokens) - 1 for row in rows]
            )
            sample_step(rows, logits)
            self._scheduler.finish_decode(rows)
        self._scheduler.remove_finished()
        self._resize()

    def fail(self, error: BaseException) -> None:
        """Fail the sequences that have a row, after a failure that no row survives. Waiting ones are not affected."""
        self._scheduler.fail_scheduled(error)
        self._runner.kv_cache.clear()

    def make_room(self) -> bool:
        """Give up the graphs, after running out of memory; without any, preempt half of the running sequences. One that
        runs alone is restarted once, with an empty KV cache. Returns False if that was done before, or nothing runs."""
        if self._runner.give_up_graphs():
            return True
        rows = self._scheduler.scheduled
        if not rows or (len(rows) == 1 and rows[0].restarted_alone):
            return False
        self._scheduler.preempt(keep=len(rows) // 2)
        if len(rows) == 1:
            rows[0].restarted_alone = True
            self._runner.kv_cache.clear()
        return True

    def _resize(self) -> None:
        if not self._scheduler.scheduled:
            promised = -(-self._scheduler.max_waiting_tokens // PAGE) * PAGE
            self._runner.kv_cache.set_capacity(max(self._capacity_tokens, promised))

    def _prefill(self) -> None:
        budget = self._runner.prefill_chunk
        # a pass over less than a page costs nearly what one over many does
        while budget >= PAGE and (chunks := self._scheduler.schedule_prefill(budget)):
            logits = self._runner.prefill([
                Chunk(each.tokens, each.sequence.lease, each.start, len(each.sequence.tokens)) for each in chunks
            ])  # fmt: skip
            budget -= sum(len(chunk.tokens) for chunk in chunks)
            whole = [row for row, chunk in enumerate(chunks) if self._scheduler.finish_prefill(chunk)]
            if whole:
                sample_step([chunks[row].sequence for row in whole], logits[whole])
                self._scheduler.remove_finished()

    def _set_threads(self, max_threads: int) -> None:
        if self._threads is None:
            self._threads = choose_thread_count(self._runner, self.checkpoint, max_threads)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
