"""What the engine keeps of a job while it runs: the request, and one sequence for each choice."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.constraints import Constraint
from pipelines.chat.detokenize import Answer
from pipelines.chat.failures import failure_of
from pipelines.chat.sampling import Draws
from pipelines.protocol.chat import ChatEvent, ChatFinished, ChatJob, ChatUsage, ChoiceFinished, FinishReason
from pipelines.protocol.images import Started


@dataclass(slots=True, eq=False)
class Request:
    """A job that was admitted. The device's thread alone changes it, but for `over`."""

    job: ChatJob
    checkpoint: ChatCheckpoint
    prompt: tuple[int, ...]
    inputs: Mapping[str, torch.Tensor]  # what a vision model sees beside the tokens
    emit: Callable[[ChatEvent], None]
    open_choices: int
    over: bool = False  # it has ended, or nobody wants it any more
    started_at: float | None = None
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    def start(self) -> None:
        """A place in the batch is there; the time limit runs from the first one."""
        if self.started_at is None:
            self.started_at = time.monotonic()
            self.emit(Started())

    def out_of_time(self, now: float) -> bool:
        """Whether it has run for longer than it may."""
        return self.started_at is not None and now - self.started_at > self.job.time_limit_s

    @property
    def usage(self) -> ChatUsage:
        """What it has used so far: nothing while it waits for a place in the batch."""
        if self.started_at is None:
            return ChatUsage(0, 0)
        return ChatUsage(len(self.prompt), self.completion_tokens, self.reasoning_tokens)

    def fail(self, error: BaseException) -> None:
        """It ends here, with all its choices."""
        if not self.over:
            self.over = True
            self.emit(failure_of(error, self.job))

    def end_choice(self, choice: int, reason: FinishReason) -> None:
        """Say so; the last one ends the request."""
        self.emit(ChoiceFinished(choice, reason))
        self.open_choices -= 1
        if not self.open_choices:
            self.over = True
            now = time.monotonic()
            self.emit(ChatFinished(self.usage, now - (self.started_at or now)))


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice: its tokens so far, and how it goes on."""

    request: Request
    choice: int
    draws: Draws
    answer: Answer
    constraint: Constraint | None
    most_new: int
    tokens: list[int] = field(default_factory=list)  # prompt and answer
    kept: int = 0  # of the tokens have keys and values in the row's slot

    @property
    def left(self) -> int:
        """How many tokens may still come."""
        return self.most_new - (len(self.tokens) - len(self.request.prompt))
