"""How many threads of a CPU a chat model's steps are computed on.

A small model's step has ended before a second thread has woken, and the process that sends its tokens needs a core too:
on two cores the starter wrote 32 answers at 1,000 tokens a second on one thread and at 800 on two, for twice the
processor time.
"""

import time
from typing import Final

import torch

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.kv_pages import PAGE, Lease
from pipelines.chat.model_runner import ModelRunner

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
