"""How many threads of a CPU a chat model's steps are computed on.

A small model's step is over before a second thread has woken, and what sends its tokens needs a core too: on two cores
the starter wrote 32 answers at 1,000 tokens a second on one thread and at 800 on two, for twice the processor time.
"""

import time
from typing import Final

import torch

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.model_runner import BatchForward

ROWS: Final = 8
STEPS: Final = 5  # the fastest counts
WORTH: Final = 1.3  # how much faster more threads have to be
LONG_S: Final = 0.02  # a step that takes this long on all threads has work for them


def fewest_threads(forward: BatchForward, checkpoint: ChatCheckpoint, most: int) -> int:
    """The fewest of 1, 2, 4, ... up to `most` threads whose steps are nearly as fast as the fastest.

    To be called in inference mode. Leaves the calling thread with any of these counts.
    """
    rows = min(ROWS, checkpoint.spec.max_batch)
    if checkpoint.device.type != "cpu" or most == 1 or not forward.slots.reserve(rows, STEPS):
        return most
    candidates = [*(1 << k for k in range(most.bit_length()) if 1 << k < most), most]
    seconds: dict[int, float] = {}
    for count in reversed(candidates):
        seconds[count] = _step_s(forward, rows, count)
        if seconds[most] > LONG_S:
            break
    forward.slots.clear()
    return next(count for count in sorted(seconds) if seconds[count] <= WORTH * min(seconds.values()))


def _step_s(forward: BatchForward, rows: int, threads: int) -> float:
    torch.set_num_threads(threads)
    taken = []
    for step in range(STEPS):
        began = time.perf_counter()
        forward.step([0] * rows, [step] * rows)
        taken.append(time.perf_counter() - began)
    return min(taken)
