"""The fallback for models that can't share a batch: one answer after another, by transformers' own `generate`.

Chats with images are here, because models keep state of their own for an image (positions, features), and so is any
model whose state is more than keys and values. Requests have the same options as in a batch, but wait longer.
"""

import threading
import time
from typing import Any, Final

import torch
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from pipelines.chat.loading.checkpoint import ChatCheckpoint
from pipelines.chat.steps.decode_step import sample_step
from pipelines.chat.steps.fairness import TokenCounts
from pipelines.chat.steps.sequence import Sequence
from pipelines.device.failures import OutOfTime
from pipelines.device.memory import with_memory
from pipelines.device.openmp import run_and_release

ORIGINAL: Final = "original_inv_freq"


class SequentialGenerator:
    """Answers the sequences of one checkpoint on a thread of its own."""

    def __init__(self, checkpoint: ChatCheckpoint, threads: int) -> None:
        self._checkpoint, self._threads = checkpoint, threads
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []  # one at most
        self._counts = TokenCounts()
        self._changed = threading.Condition()  # of all that is waiting, and whether more may come
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="sequential chat", daemon=True)
        self._thread.start()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, before those of lower tiers and of keys that have got more."""
        with self._changed:
            self._counts.arrive(sequence, [*self._waiting, *self._running])
            self._waiting.append(sequence)
            self._changed.notify()

    def close(self) -> None:
        """End the thread after the sequences that wait now."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _next(self) -> Sequence | None:
        """Wait for the next sequence, and return it; None if there will be none."""
        with self._changed:
            for ended in self._running:
                written = len(ended.tokens) - len(ended.request.prompt)
                self._counts.add(ended, prompt=len(ended.request.prompt), answer=written)
            self._running = []
            while not self._waiting and not self._closed:
                self._changed.wait()
            if not self._waiting:
                return None
            self._running = [min(self._waiting, key=self._counts.turn)]
            self._waiting.remove(self._running[0])
            return self._running[0]

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # a new thread begins with what another has set last
        while (sequence := self._next()) is not None:
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
            self._sequence.request.progress()
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
