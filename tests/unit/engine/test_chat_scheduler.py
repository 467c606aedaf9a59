"""The chat scheduler without a model: who is prefilled, who decodes, who is preempted."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.detokenize import ChoiceOutput
from pipelines.chat.kv_cache import KVCache
from pipelines.chat.sampling import SamplerState
from pipelines.chat.scheduler import Scheduler
from pipelines.chat.sequence import Request, Sequence
from pipelines.protocol.chat import ChatEvent, ChatJob, ChatSampling
from pipelines.protocol.images import Failed, Started

MAX_BATCH = 4
CHUNK = 64


class Scheduled:
    """A scheduler whose sequences decode a token a step, in a cache of so many tokens that has no layers."""

    def __init__(self, capacity_tokens: int) -> None:
        cache = KVCache(layers=0, max_rows=MAX_BATCH, max_tokens=512, capacity_tokens=capacity_tokens)
        self.scheduler = Scheduler(cache, MAX_BATCH)
        self.events: list[ChatEvent] = []

    def add(self, prompt_tokens: int, choices: int = 1, time_limit_s: float = 60.0) -> list[Sequence]:
        job = cast(ChatJob, SimpleNamespace(time_limit_s=time_limit_s))
        checkpoint = cast(ChatCheckpoint, None)
        request = Request(job, checkpoint, (0,) * prompt_tokens, {}, self.events.append, open_choices=choices)
        sequences = [
            Sequence(
                request, choice, SamplerState(ChatSampling(), choice),
                cast(ChoiceOutput, SimpleNamespace(finish_reason=None)), None, 2**31, [0] * prompt_tokens,
            )
            for choice in range(choices)
        ]  # fmt: skip
        for sequence in sequences:
            self.scheduler.add(sequence)
        return sequences

    def prefill(self) -> Iterator[tuple[Sequence, int, int]]:
        """The chunks of one step: sequence, start, tokens."""
        budget = CHUNK
        while chunk := self.scheduler.schedule_prefill(budget):
            budget -= len(chunk.tokens)
            yield chunk.sequence, chunk.start, len(chunk.tokens)
            if self.scheduler.finish_prefill(chunk):
                chunk.sequence.tokens.append(0)

    def step(self) -> list[Sequence]:
        """The sequences that decode."""
        self.scheduler.remove_ended()
        for _ in self.prefill():
            pass
        rows = list(self.scheduler.schedule_decode())
        for row in rows:
            row.num_cached_tokens = len(row.tokens)
            row.tokens.append(0)
        return rows


def test_a_long_prompt_is_prefilled_in_chunks_beside_the_rows_that_decode() -> None:
    scheduled = Scheduled(capacity_tokens=2048)
    (short,) = scheduled.add(10)
    assert scheduled.step() == [short]
    (long,) = scheduled.add(150)
    assert [scheduled.step() for _ in range(2)] == [[short], [short]]
    assert long.num_cached_tokens == 2 * CHUNK
    assert scheduled.step() == [short, long]


def test_choices_of_a_request_share_its_prefix() -> None:
    scheduled = Scheduled(capacity_tokens=2048)
    first, second = scheduled.add(40, choices=2)
    assert list(scheduled.prefill()) == [(first, 0, 40), (second, 39, 1)]
    assert [type(event) for event in scheduled.events] == [Started]


def test_the_sequences_that_came_last_are_preempted_and_come_back() -> None:
    scheduled = Scheduled(capacity_tokens=3 * 64)
    sequences = [scheduled.add(50)[0] for _ in range(3)]
    for _ in range(3):
        scheduled.step()
    assert scheduled.scheduler.running == sequences
    while scheduled.scheduler.running == sequences:
        scheduled.step()
    assert scheduled.scheduler.running == sequences[:1]
    assert len(sequences[0].tokens) == 66  # its 65th needed a second block of 64: 3 x 128 tokens do not fit
    sequences[0].request.done = True
    scheduled.step()
    assert scheduled.scheduler.running == [sequences[1]]
    assert sequences[1].num_cached_tokens == len(sequences[1].tokens) - 1


def test_a_sequence_that_never_fits_raises_memory_error() -> None:
    scheduled = Scheduled(capacity_tokens=64)
    scheduled.add(64)
    with pytest.raises(MemoryError, match="64 tokens"):
        scheduled.step()


def test_the_last_row_moves_into_one_that_becomes_free() -> None:
    scheduled = Scheduled(capacity_tokens=2048)
    sequences = [scheduled.add(10)[0] for _ in range(4)]
    (waiting,) = scheduled.add(10)
    assert scheduled.step() == sequences
    sequences[1].request.done = True
    assert scheduled.step() == [sequences[0], sequences[3], sequences[2], waiting]


def test_what_exceeds_its_time_limit_fails() -> None:
    scheduled = Scheduled(capacity_tokens=2048)
    (late,) = scheduled.add(10, time_limit_s=-1.0)
    (waiting,) = scheduled.add(10)
    assert scheduled.step() == [late, waiting]
    assert scheduled.step() == [waiting]
    assert [event.code for event in scheduled.events if isinstance(event, Failed)] == ["timed_out"]
