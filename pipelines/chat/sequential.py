"""The plain path, for models that can't share a batch: one answer after another, by transformers' own `generate`.

Vision models are here, because what they keep of a picture (positions, features) is their own affair, and so is any
model whose state is more than keys and values. Everything that can be asked for works as in a batch, but waits longer.
"""

import queue
import threading
import time
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.decode_step import take
from pipelines.chat.sequence import Sequence
from pipelines.device.failures import OutOfTime
from pipelines.device.openmp import compute


class Solo:
    """A thread that answers."""

    def __init__(self, checkpoint: ChatCheckpoint, threads: int) -> None:
        self._checkpoint, self._threads = checkpoint, threads
        self._inbox: queue.SimpleQueue[Sequence | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="solo chat", daemon=True).start()

    def add(self, sequence: Sequence) -> None:
        """Let it wait for its turn."""
        self._inbox.put(sequence)

    def end(self) -> None:
        """Once all that waits has had its turn."""
        self._inbox.put(None)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # a new thread begins with what another has set last
        while (sequence := self._inbox.get()) is not None:
            if sequence.request.over:
                continue
            sequence.request.start()
            try:
                compute(self._generate, sequence)
            except Exception as error:
                sequence.request.fail(error)
            if sequence.request.out_of_time(time.monotonic()):
                sequence.request.fail(OutOfTime())

    def _generate(self, sequence: Sequence) -> None:
        device = self._checkpoint.device
        tokens = torch.tensor([sequence.tokens], device=device)
        self._checkpoint.model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            **{name: value.to(device) for name, value in sequence.request.inputs.items()},
            # The end is ours to see: no end token, and a bound that is never met.
            generation_config=GenerationConfig(max_new_tokens=sequence.left + 1, do_sample=False, use_cache=True),
            logits_processor=[_Speaker(sequence, self._checkpoint.tokens.count)],
            stopping_criteria=[_End(sequence)],
        )


class _Speaker(LogitsProcessor):  # type: ignore[misc]
    """Draws the next token and leaves `generate` no other."""

    def __init__(self, sequence: Sequence, vocabulary: int) -> None:
        self._sequence = sequence
        self._vocabulary = vocabulary

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """`scores` are the logits [1, vocabulary]."""
        logits = scores.float().clone()
        logits[:, self._vocabulary :] = -torch.inf
        if not _over(self._sequence):
            take([self._sequence], logits)
        only = torch.full_like(scores, -torch.inf)
        only[:, self._sequence.tokens[-1]] = 0.0
        return only


class _End(StoppingCriteria):  # type: ignore[misc]
    """The answer has ended, or nobody waits for it any more."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: object) -> torch.Tensor:
        """One bool for the one row."""
        return torch.tensor([_over(self._sequence)], device=input_ids.device)


def _over(sequence: Sequence) -> bool:
    request = sequence.request
    return bool(request.over or sequence.answer.reason or request.out_of_time(time.monotonic()))
