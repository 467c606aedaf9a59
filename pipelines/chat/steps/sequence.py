"""The engine's state of a job while it runs: the request, and one sequence for each choice."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from pipelines.chat.failures import to_failed_event
from pipelines.chat.grammars.constraints import Constraint
from pipelines.chat.loading.checkpoint import ChatCheckpoint
from pipelines.chat.model.kv_pages import Lease
from pipelines.chat.steps.detokenize import ChoiceOutput
from pipelines.chat.steps.sampling import SamplerState
from pipelines.chat.steps.thinking_budget import ThinkingBudget
from pipelines.protocol.chat import ChatEvent, ChatFinished, ChatJob, ChatUsage, ChoiceFinished, FinishReason
from pipelines.protocol.images import Started


@dataclass(slots=True, eq=False)
class Request:
    """A job that was admitted. Only the device thread changes it, except for `done`."""

    job: ChatJob
    checkpoint: ChatCheckpoint
    prompt: tuple[int, ...]
    inputs: Mapping[str, torch.Tensor]  # of a vision model, beside the tokens
    emit: Callable[[ChatEvent], None]
    open_choices: int
    done: bool = False  # finished, failed or cancelled
    started_at: float | None = None
    progressed_at: float = 0.0  # when it got its last token, or was scheduled
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, that an earlier request had computed

    @property
    def ends(self) -> frozenset[int]:
        """Return the tokens that end an answer."""
        ends, own = self.checkpoint.tokens.eos_ids, self.job.stop_tokens
        return ends | own if own else ends

    def start(self, cached_tokens: int = 0) -> None:
        """Record that a sequence of the request is scheduled, with so many tokens of its prompt from the cache."""
        self.progress()
        if self.started_at is None:
            self.started_at = self.progressed_at
            self.cached_tokens = cached_tokens
            self.emit(Started())

    def progress(self) -> None:
        """Record that the request gets on: its time limit counts anew."""
        self.progressed_at = time.monotonic()

    def timed_out(self, now: float) -> bool:
        """Return whether a scheduled request has got no further for its time limit. `now` is of the monotonic
        clock."""
        return now - self.progressed_at > self.job.time_limit_s

    @property
    def usage(self) -> ChatUsage:
        """Return the tokens that the request has used so far: none before it was scheduled."""
        if self.started_at is None:
            return ChatUsage(0, 0)
        return ChatUsage(len(self.prompt), self.completion_tokens, self.reasoning_tokens, self.cached_tokens)

    def fail(self, error: BaseException) -> None:
        """End the request with an error, with all its choices."""
        if not self.done:
            self.done = True
            self.emit(to_failed_event(error, self.job))

    def finish_choice(self, choice: int, reason: FinishReason, stop: str | None) -> None:
        """End a choice. The last one finishes the request."""
        self.emit(ChoiceFinished(choice, reason, stop))
        self.open_choices -= 1
        if not self.open_choices:
            self.done = True
            now = time.monotonic()
            self.emit(ChatFinished(self.usage, now - (self.started_at or now)))


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request: its tokens so far, and the state that decides the next ones."""

    request: Request
    choice: int
    sampler: SamplerState
    output: ChoiceOutput
    constraint: Constraint | None
    max_new_tokens: int
    budget: ThinkingBudget | None = None
    tokens: list[int] = field(default_factory=list)  # prompt and completion
    num_cached_tokens: int = 0  # have their keys and values in the sequence's pages of the KV cache
    lease: Lease = field(default_factory=Lease)  # those pages
    restarted_alone: bool = False  # it had the device to itself, and ran out of memory
    came: int = 0  # how many had come when it did
    passed: int = 0  # sequences that went before it because they took less memory
    counted_tokens: int = 0  # of those, that its key has got: it gets them once

    @property
    def owner(self) -> str:
        """Return whose it is: an API key's."""
        return self.request.job.owner

    @property
    def finished(self) -> bool:
        """Return whether the choice or its request has ended."""
        return self.request.done or self.output.finish_reason is not None

    @property
    def remaining_tokens(self) -> int:
        """Return how many more tokens the sequence may get."""
        return self.max_new_tokens - (len(self.tokens) - len(self.request.prompt))
