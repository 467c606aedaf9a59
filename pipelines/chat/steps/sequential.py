"""The fallback for models that can't share a batch: one answer after another, by transformers' own `generate`.

Chats with images are here, because models keep state of their own for an image (positions, features), and so is any
model whose state is more than keys and values. Requests have the same options as in a batch, but wait longer.
"""

import itertools
import queue
import threading
import time
from typing import Any, Final

import torch
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from pipelines.chat.loading.checkpoint import ChatCheckpoint
from pipelines.chat.steps.decode_step import sample_step
from pipelines.chat.steps.sequence import Sequence
from pipelines.device.failures import OutOfTime
from pipelines.device.memory import with_memory
from pipelines.device.openmp import run_and_release
from pipelines.protocol.tiers import RANK

ORIGINAL: Final = "original_inv_freq"


class SequentialGenerator:
    """Answers the sequences of one checkpoint on a thread of its own."""

    def __init__(self, checkpoint: ChatCheckpoint, threads: int) -> None:
        self._checkpoint, self._threads = checkpoint, threads
        self._inbox: queue.PriorityQueue[tuple[int, int, Sequence | None]] = queue.PriorityQueue()
        self._came = itertools.count()
        self._thread = threading.Thread(target=self._run, name="sequential chat", daemon=True)
        self._thread.start()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, before those of lower tiers."""
        self._inbox.put((RANK[sequence.request.job.tier], next(self._came), sequence))

    def close(self) -> None:
        """End the thread after the sequences that wait now."""
        self._inbox.put((len(RANK), next(self._came), None))

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # a new thread begins with what another has set last
        while (sequence := self._inbox.get()[-1]) is not None:
            if sequence.request.done:
                continue
            sequence.request.start()
            try:
                with_memory(self._checkpoint.device, run_and_release, self._generate, sequence)
            except BaseException as error:  # a panic of a library in Rust is no Exception
                sequence.request.fail(error)
            if sequence.request.timed_out(time.monotonic()):
                sequence.request.fail(OutOfTime())

    def _generate(self, sequence: Sequence) -> None:
        """Go on with a sequence from the tokens that it has: after running out of memory, with some of the answer."""
        device = self._checkpoint.device
        _reset_rope(self._checkpoint.model)
        tokens = torch.tensor([sequence.tokens], device=device)
        self._checkpoint.model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            **{name: value.to(device) for name, value in sequence.request.inputs.items()},
            # `_Stop` ends it: no end token here, and a bound that is never reached
            generation_config=GenerationConfig(
                max_new_tokens=sequence.remaining_tokens + 1, do_sample=False, use_cache=True
            ),
            logits_processor=[_Sampler(sequence, self._checkpoint.tokens.vocab_size)],
            stopping_criteria=[_Stop(sequence)],
        )


def _reset_rope(model: torch.nn.Module) -> None:
    """Forget the longest text so far: a dynamic rotary embedding keeps the frequencies that it had for that one. Some
    models have one for each kind of layer."""
    for module in model.modules():
        longest = getattr(module, "original_max_seq_len", None)
        names = [*module._buffers, *vars(module)] if longest else []
        for name in names:
            if name.endswith("max_seq_len_cached"):
                setattr(module, name, longest)
            elif name.endswith(ORIGINAL):
                own = name.removesuffix(ORIGINAL) + "inv_freq"
                original = getattr(module, name).to(getattr(module, own).device)
                module.register_buffer(own, original.clone(), persistent=False)


class _Sampler(LogitsProcessor):  # type: ignore[misc]
    """Samples the next token and masks all others, so that `generate` picks it too."""

    def __init__(self, sequence: Sequence, vocab_size: int) -> None:
        self._sequence = sequence
        self._vocab_size = vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Sample the next token, and return scores that allow it alone. `scores` are the logits [1, vocabulary]."""
        logits = scores.float().clone()
        logits[:, self._vocab_size :] = -torch.inf
        if not _should_stop(self._sequence):
            sample_step([self._sequence], logits)
        only = torch.full_like(scores, -torch.inf)
        only[:, self._sequence.tokens[-1]] = 0.0
        return only


class _Stop(StoppingCriteria):  # type: ignore[misc]
    """The sequence has finished, was cancelled or has run for too long."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: object) -> torch.Tensor:
        """Return whether to stop, as one bool for the one row."""
        return torch.tensor([_should_stop(self._sequence)], device=input_ids.device)


def _should_stop(sequence: Sequence) -> bool:
    return sequence.finished or sequence.request.timed_out(time.monotonic())
