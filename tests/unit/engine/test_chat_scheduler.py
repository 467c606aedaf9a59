"""The chat scheduler without a model: who is prefilled, who decodes, who is preempted."""

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from pipelines.chat.loading.checkpoint import ChatCheckpoint
from pipelines.chat.model.kv_cache import KVCache
from pipelines.chat.model.kv_pages import PAGE
from pipelines.chat.model.length_rules import LengthRules
from pipelines.chat.steps.detokenize import ChoiceOutput
from pipelines.chat.steps.sampling import SamplerState
from pipelines.chat.steps.scheduler import MAX_PASSED, Scheduler
from pipelines.chat.steps.sequence import Request, Sequence
from pipelines.protocol.chat import ChatEvent, ChatJob, ChatSampling
from pipelines.protocol.images import Failed, Queued, Started
from pipelines.protocol.tiers import ServiceTier

MAX_BATCH = 4
CHUNK = 64


class Scheduled:
    """A scheduler whose sequences decode a token a step, in a cache of so many tokens that has no layers."""

    def __init__(
        self, capacity_tokens: int, max_batch: int = MAX_BATCH, rules: LengthRules | None = None, chunk: int = CHUNK,
        most_scores: int = 0,
    ) -> None:  # fmt: skip
        self.chunk = chunk
        self.cache = KVCache(layers=0, capacity_tokens=capacity_tokens)
        self.scheduler = Scheduler(self.cache, max_batch, rules, most_scores)
        self.events: list[ChatEvent] = []

    def add(
        self,
        prompt_tokens: int,
        choices: int = 1,
        time_limit_s: float = 60.0,
        scope: str = "key",
        tier: ServiceTier = "default",
        owner: str = "",
    ) -> list[Sequence]:
        job = cast(ChatJob, SimpleNamespace(time_limit_s=time_limit_s, cache_scope=scope, tier=tier, owner=owner))
        checkpoint = cast(ChatCheckpoint, None)
        request = Request(job, checkpoint, (0,) * prompt_tokens, {}, self.events.append, open_choices=choices)
        sequences = [
            Sequence(
                request, choice, SamplerState(ChatSampling(), choice),
                cast(ChoiceOutput, SimpleNamespace(finish_reason=None)), None, 2**31, None, [0] * prompt_tokens,
            )
            for choice in range(choices)
        ]  # fmt: skip
        for sequence in sequences:
            self.scheduler.add(sequence)
        return sequences

    def prefill(self) -> Iterator[tuple[Sequence, int, int]]:
        """The chunks of one step: sequence, start, tokens."""
        budget = self.chunk
        while chunks := self.scheduler.schedule_prefill(budget):
            for chunk in chunks:
                budget -= len(chunk.tokens)
                yield chunk.sequence, chunk.start, len(chunk.tokens)
                if self.scheduler.finish_prefill(chunk):
                    chunk.sequence.tokens.append(0)

    def step(self) -> list[Sequence]:
        """The sequences that decode."""
        self.scheduler.remove_ended()
        for _ in self.prefill():
            pass
        batches = self.scheduler.schedule_decode()
        for rows in batches:
            for row in rows:
                row.num_cached_tokens = len(row.tokens)
                row.tokens.append(0)
            self.scheduler.finish_decode(rows)
        return list(self.scheduler.running)


def test_a_long_prompt_is_prefilled_in_chunks_beside_the_rows_that_decode() -> None:
    scheduled = Scheduled(capacity_tokens=2048)
    (short,) = scheduled.add(10)
    assert scheduled.step() == [short]
    (long,) = scheduled.add(150)
    assert [scheduled.step() for _ in range(2)] == [[short], [short]]
    assert long.num_cached_tokens == 2 * CHUNK
    assert scheduled.step() == [short, long]


def test_choices_of_a_request_share_its_beginning() -> None:
    scheduled = Scheduled(capacity_tokens=2048)
    first, second = scheduled.add(40, choices=2)
    assert list(scheduled.prefill()) == [(first, 0, 40), (second, PAGE, 40 - PAGE)]
    assert [type(event) for event in scheduled.events] == [Started]
    assert first.request.cached_tokens == 0


def test_prompts_that_wait_share_a_pass_as_far_as_the_chunk_goes() -> None:
    scheduled = Scheduled(capacity_tokens=4096, most_scores=2**22, chunk=100)
    sequences = [scheduled.add(30, scope=str(number))[0] for number in range(4)]
    chunks = scheduled.scheduler.schedule_prefill(100)
    assert [(each.sequence, each.start, len(each.tokens)) for each in chunks] == [
        (sequence, 0, 30) for sequence in sequences[:3]
    ], "ten tokens of the fourth would cost a pass"
    assert scheduled.scheduler.scheduled == sequences[:3]
    assert all(map(scheduled.scheduler.finish_prefill, chunks))
    assert scheduled.scheduler.running == sequences[:3]


def test_a_long_prompt_shares_its_last_pass_and_keeps_its_place() -> None:
    scheduled = Scheduled(capacity_tokens=4096, most_scores=2**22)
    (long,), (other,), (last,) = (scheduled.add(count, scope=str(count)) for count in (100, 20, 60))
    expected = [[(long, 0, 64)], [(long, 64, 36)], [(other, 0, 20), (last, 0, 44)], [(last, 44, 16)]]
    for passes in expected:
        chunks = scheduled.scheduler.schedule_prefill(CHUNK)
        assert [(each.sequence, each.start, len(each.tokens)) for each in chunks][: len(passes)] == passes
        for chunk in chunks[len(passes) :]:
            pytest.fail(f"{chunk} shares the pass")
        for chunk in chunks:
            scheduled.scheduler.finish_prefill(chunk)


def test_prompts_that_begin_alike_wait_for_the_pages_of_the_first() -> None:
    scheduled = Scheduled(capacity_tokens=4096, most_scores=2**22, chunk=400)
    first, second, third = (scheduled.add(100)[0] for _ in range(3))
    (stranger,) = scheduled.add(100, scope="another key")
    for sequence, number in ((second, 1), (third, 2)):
        sequence.tokens[70:] = [number] * 30
    passes = []
    while chunks := scheduled.scheduler.schedule_prefill(400):
        passes.append([(each.sequence, each.start) for each in chunks])
        for chunk in chunks:
            scheduled.scheduler.finish_prefill(chunk)
    assert passes == [[(first, 0)], [(second, 64), (third, 64), (stranger, 0)]]


def test_choices_of_a_prompt_that_fills_no_page_share_its_pass() -> None:
    scheduled = Scheduled(capacity_tokens=4096, most_scores=2**22, chunk=400)
    choices = scheduled.add(PAGE, choices=3)
    assert [each.sequence for each in scheduled.scheduler.schedule_prefill(400)] == choices


def test_a_pass_that_runs_out_of_memory_is_given_up_from_its_end() -> None:
    scheduled = Scheduled(capacity_tokens=4096, most_scores=2**22, chunk=400)
    sequences = [scheduled.add(40, scope=str(number))[0] for number in range(4)]
    assert len(scheduled.scheduler.schedule_prefill(400)) == 4
    scheduled.scheduler.preempt(keep=2)
    assert scheduled.scheduler.scheduled == sequences[:2]
    assert not sequences[2].lease.pages
    sequences[1].request.done = True
    scheduled.scheduler.remove_ended()
    assert scheduled.step() == [sequences[0], sequences[2]]


def test_prompts_whose_scores_would_be_many_do_not_share_a_pass() -> None:
    scheduled = Scheduled(capacity_tokens=2**20, most_scores=400**2, chunk=2**20)
    (long,), (short,) = scheduled.add(301, scope="a"), scheduled.add(100, scope="b")
    assert [each.sequence for each in scheduled.scheduler.schedule_prefill(2**20)] == [long]
    assert not short.lease.pages


def test_a_turn_prefills_only_what_is_new_and_only_for_the_same_key() -> None:
    scheduled = Scheduled(capacity_tokens=2048)
    (first,) = scheduled.add(40)
    assert scheduled.step() == [first]
    while len(first.tokens) < 100:
        scheduled.step()
    first.request.done = True
    scheduled.step()
    (second,), (other,) = scheduled.add(120), scheduled.add(120, scope="another key")
    assert list(scheduled.prefill()) == [(second, 96, 24), (other, 0, 40)]
    assert second.request.cached_tokens == 96
    assert other.request.cached_tokens == 0


def test_the_sequences_that_came_last_are_preempted_and_come_back() -> None:
    scheduled = Scheduled(capacity_tokens=6 * PAGE)
    sequences = [scheduled.add(50, scope=str(index))[0] for index in range(3)]
    for _ in range(3):
        scheduled.step()
    assert scheduled.scheduler.running == sequences
    while scheduled.scheduler.running == sequences:
        scheduled.step()
    assert scheduled.scheduler.running == sequences[:2]
    assert len(sequences[0].tokens) == 66  # its 65th needed a third page
    sequences[0].request.done = True
    scheduled.step()
    assert scheduled.scheduler.running == sequences[1:]
    assert sequences[2].num_cached_tokens == len(sequences[2].tokens) - 1


def test_a_sequence_that_never_fits_raises_memory_error() -> None:
    scheduled = Scheduled(capacity_tokens=64)
    scheduled.add(65)
    with pytest.raises(MemoryError, match="65 tokens"):
        scheduled.step()


def test_a_long_chat_and_many_short_ones_run_together_in_the_memory_of_their_tokens() -> None:
    """Rows of a rectangle would need 32 times the longest."""
    lengths = [16_000, *[500] * 31]
    scheduled = Scheduled(capacity_tokens=sum(lengths) + 32 * 2 * PAGE, max_batch=32, chunk=2048)
    sequences = [scheduled.add(length, scope=str(index))[0] for index, length in enumerate(lengths)]
    while len(scheduled.step()) < 32:
        assert scheduled.scheduler.scheduled, "it makes progress"
    assert scheduled.scheduler.running == sequences
    assert scheduled.cache.used_tokens <= scheduled.cache.capacity_tokens


def test_a_text_that_becomes_long_is_computed_again_and_decodes_apart() -> None:
    scheduled = Scheduled(capacity_tokens=2048, rules=LengthRules(long_from=60))
    (short,), (growing,), (long,) = scheduled.add(10), scheduled.add(58, scope="other"), scheduled.add(70)
    while len(scheduled.step()) < 3:
        assert scheduled.scheduler.scheduled, "it makes progress"
    while len(growing.tokens) < 61:
        scheduled.step()
    assert [sorted(map(id, rows)) for rows in scheduled.scheduler.schedule_decode()] == [[id(long)], [id(short)]]
    assert growing.num_cached_tokens == 0
    assert (growing, 0, 61) in list(scheduled.prefill())


def test_what_exceeds_its_time_limit_fails() -> None:
    scheduled = Scheduled(capacity_tokens=2048)
    (late,) = scheduled.add(10, time_limit_s=-1.0)
    (waiting,) = scheduled.add(10)
    assert scheduled.step() == [late, waiting]
    assert scheduled.step() == [waiting]
    assert [event.code for event in scheduled.events if isinstance(event, Failed)] == ["timed_out"]


def test_sequences_wait_by_tier_and_then_as_they_came() -> None:
    scheduled = Scheduled(capacity_tokens=2048, max_batch=1)
    (running,) = scheduled.add(10)
    assert scheduled.step() == [running]
    tiers: tuple[ServiceTier, ...] = ("flex", "default", "priority", "flex", "default", "priority")
    waiting = [scheduled.add(10, tier=tier)[0] for tier in tiers]
    began = []
    for _ in waiting:
        running.request.done = True
        (running,) = scheduled.step()
        began.append(waiting.index(running))
    assert began == [2, 5, 1, 4, 0, 3]


@pytest.mark.parametrize(("capacity_tokens", "max_batch"), [(2048, 2), (6 * PAGE, 4)])
def test_flex_gives_its_place_and_its_memory_to_who_waits_and_comes_back(capacity_tokens: int, max_batch: int) -> None:
    scheduled = Scheduled(capacity_tokens, max_batch, chunk=256)
    prompt = 2 * PAGE + 4
    (first,), (flex,) = scheduled.add(prompt, scope="1"), scheduled.add(prompt, scope="2", tier="flex")
    assert scheduled.step() == [first, flex]
    (another,) = scheduled.add(prompt, scope="3", tier="flex")
    assert scheduled.step() == [first, flex]  # nobody who goes before it waits
    (second,) = scheduled.add(prompt, scope="4")
    assert scheduled.step() == [first, second]
    assert len(flex.tokens) > prompt
    written = len(flex.tokens)
    first.request.done = second.request.done = True
    for _ in range(2):
        running = scheduled.step()
    assert running == [flex, another]
    assert len(flex.tokens) > written


def test_the_last_to_be_preempted_are_those_that_may_not_wait() -> None:
    scheduled = Scheduled(capacity_tokens=2048)
    (flex,), (default,), (priority,) = (scheduled.add(10, tier=tier) for tier in ("flex", "default", "priority"))
    scheduled.step()
    assert scheduled.scheduler.running == [priority, default, flex]
    scheduled.scheduler.preempt(keep=1)
    assert scheduled.scheduler.running == [priority]
    assert scheduled.step() == [priority, default, flex][:1]


def of_keys(sequences: list[Sequence]) -> Counter[str]:
    return Counter(sequence.owner for sequence in sequences)


def test_a_key_that_waits_gets_rows_of_one_that_has_them_all() -> None:
    scheduled = Scheduled(capacity_tokens=2**14, max_batch=8, chunk=2048)
    hogs = [scheduled.add(20, owner="hog", scope="hog")[0] for _ in range(32)]
    assert of_keys(scheduled.step()) == {"hog": 8}
    for _ in range(3):
        scheduled.add(20, owner="guest", scope="guest")
    scheduled.step()
    assert of_keys(scheduled.step())["guest"] >= 1, "at once"
    for _ in range(8):
        running = scheduled.step()
    assert of_keys(running) == {"hog": 5, "guest": 3}
    scheduled.add(20, owner="third", scope="third")
    for _ in range(30):
        running = scheduled.step()
    assert of_keys(running) == {"hog": 4, "guest": 3, "third": 1}, "rows are not passed round"
    assert [hog for hog in running if hog.owner == "hog"] == hogs[:4]


def test_the_next_one_is_of_the_key_that_has_got_the_least() -> None:
    scheduled = Scheduled(capacity_tokens=2**14, max_batch=1, chunk=2048)
    lengths = {"long": 400, "short": 100}
    for owner, length in lengths.items():
        for number in range(20):
            scheduled.add(length, owner=owner, scope=f"{owner}{number}")
    began = []
    for _ in range(20):
        (running,) = scheduled.step()
        began.append(running.owner)
        running.request.done = True
    assert 15 <= began.count("short") <= 16, "four times as many of a fourth of the length"
    assert began[:3].count("short") >= 1


def test_a_key_that_comes_late_owes_and_earns_nothing() -> None:
    scheduled = Scheduled(capacity_tokens=2**14, max_batch=1, chunk=2048)
    for number in range(10):
        scheduled.add(100, owner="first", scope=str(number))
    for _ in range(5):
        (running,) = scheduled.step()
        running.request.done = True
    for number in range(10):
        scheduled.add(100, owner="late", scope=f"late{number}")
    began = []
    for _ in range(10):
        (running,) = scheduled.step()
        began.append(running.owner)
        running.request.done = True
    assert Counter(began) == {"first": 5, "late": 5}


def test_one_that_finds_no_memory_stops_no_smaller_one_and_does_not_starve() -> None:
    scheduled = Scheduled(capacity_tokens=8 * PAGE, max_batch=8, chunk=2048)
    (holder,) = scheduled.add(4 * PAGE - 8, scope="holder")
    assert scheduled.step() == [holder]
    (large,) = scheduled.add(6 * PAGE, scope="large")
    passed = 0
    while not large.lease.pages:
        (small,) = scheduled.add(PAGE - 8, scope=f"small{passed}")
        running = scheduled.step()
        if small in running:
            passed += 1
            small.request.done = True
        else:
            holder.request.done = True
    assert passed == MAX_PASSED


def test_memory_is_taken_from_the_key_that_has_the_most() -> None:
    scheduled = Scheduled(capacity_tokens=2048)
    hogs = [scheduled.add(10, owner="hog")[0] for _ in range(3)]
    (guest,) = scheduled.add(10, owner="guest")
    scheduled.step()
    scheduled.scheduler.preempt(keep=2)
    assert scheduled.scheduler.scheduled == [hogs[0], guest]
    assert [type(event) for event in scheduled.events] == [Started] * 4 + [Queued] * 2, "they say that they wait"


def test_what_gets_on_never_meets_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    scheduled = Scheduled(capacity_tokens=2048, max_batch=1)
    (running,) = scheduled.add(10, time_limit_s=5.0)
    (waiting,) = scheduled.add(10, time_limit_s=5.0)
    for _ in range(20):
        now[0] += 4.0
        assert scheduled.step() == [running]
    now[0] += 6.0
    assert scheduled.step() == [waiting]
    assert [event.code for event in scheduled.events if isinstance(event, Failed)] == ["timed_out"]
