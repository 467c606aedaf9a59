"""Captured decode steps and prompts that share a pass: the same logits, whatever rows come and go."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipelines.chat.engine import ChatEngine
from pipelines.chat.loading.checkpoint import ChatCheckpoint, load_chat
from pipelines.chat.model import decode_graphs
from pipelines.chat.model.decode_graphs import MOST_GRAPHS
from pipelines.chat.model.kv_pages import Lease
from pipelines.chat.model.model_runner import Chunk, ModelRunner
from pipelines.device.graph_capture import CAPTURES, Run
from pipelines.protocol.chat import ChatFinished, ChatJob, ChatSampling, ChatSpec
from tests.engines.chat_jobs import run
from tests.engines.chat_jobs import text as text_of
from tests.engines.device import DEVICE
from tests.support.recorded_steps import Captures
from tests.support.tiny_chat_checkpoints import make_qwen
from tests.support.tiny_long_chats import TOGETHER

CLOSE = 1e-4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> ChatCheckpoint:
    folder = tmp_path_factory.mktemp("weights") / "qwen"
    make_qwen(folder)
    return load_chat(ChatSpec("qwen", folder), DEVICE)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    made = Captures()
    monkeypatch.setitem(CAPTURES, DEVICE.type, lambda: made)
    return made


def new_runner(checkpoint: ChatCheckpoint) -> ModelRunner:
    return ModelRunner(
        checkpoint.model, DEVICE, checkpoint.tokens.vocab_size, checkpoint.batching.rules, capacity_tokens=2**16
    )


def text(count: int, seed: int) -> list[int]:
    return [random.Random(seed).randrange(5, 60) for _ in range(count)]


def begin(runner: ModelRunner, lengths: list[int], room: int = 1) -> list[Lease]:
    """Rows with these prompts, each computed by itself."""
    leases = []
    for number, length in enumerate(lengths):
        lease, _ = runner.kv_cache.begin(None, [])
        assert runner.kv_cache.reserve(lease, length + room)
        runner.prefill([Chunk(text(length, number), lease, 0, length)])
        leases.append(lease)
    return leases


def test_captured_steps_have_the_logits_of_launched_ones_as_rows_grow_come_and_go(
    checkpoint: ChatCheckpoint, captures: Captures
) -> None:
    plain, captured = new_runner(checkpoint), new_runner(checkpoint)
    captured.use_graphs()
    asked = [[40], [40], [90, 40, 7], [91, 41, 8], [92, 42], [1200, 640, 70, 9, 9], [1200, 640, 70, 9, 9],
             [1210, 660, 60, 20, 3], [90, 40, 7]]  # fmt: skip
    for lengths in asked:
        logits = []
        for runner in (plain, captured):
            leases = begin(runner, lengths)
            logits.append(runner.decode(text(len(lengths), 99), leases, lengths).clone())
            for lease in leases:
                runner.kv_cache.release(lease)
        assert logits[1].shape == logits[0].shape
        assert (logits[1] - logits[0]).abs().max() < CLOSE, lengths
    assert captures.made >= 3
    assert captures.repeated >= 5
    assert len(asked) - captures.repeated <= 4, "the first of each shape is launched"


def test_steps_of_a_text_are_few_shapes(checkpoint: ChatCheckpoint, captures: Captures) -> None:
    runner = new_runner(checkpoint)
    runner.use_graphs()
    leases = begin(runner, [20, 20, 20], room=500)
    for step in range(400):
        runner.decode([5, 6, 7], leases, [20 + step] * 3)
    assert captures.made - captures.repeated < 0
    assert captures.made == 3, "to 256 tokens, 384 and 512"


def test_what_moves_the_buffers_forgets_the_graphs(checkpoint: ChatCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what captures them: the memory that graphs share goes with the last of them."""
    begun: list[Captures] = []

    def new_capture() -> Captures:
        begun.append(Captures())
        return begun[-1]

    monkeypatch.setitem(CAPTURES, DEVICE.type, new_capture)
    runner = new_runner(checkpoint)
    runner.use_graphs()
    for made in (1, 2):
        leases = begin(runner, [30])
        for _ in range(3):
            runner.decode([5], leases, [30])
        assert [each.made for each in begun] == [1] * made
        runner.kv_cache.release(leases[0])
        runner.kv_cache.clear()


def test_no_graph_is_dropped_alone(
    checkpoint: ChatCheckpoint, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch would free with it what cuBLAS works in for the others."""
    assert MOST_GRAPHS > 2
    monkeypatch.setattr(decode_graphs, "MOST_GRAPHS", 2)
    runner = new_runner(checkpoint)
    runner.use_graphs()
    leases = begin(runner, [30] * 4)
    for rows in (1, 1, 2, 2, 1, 4, 4):  # the third shape begins anew
        runner.decode([5] * rows, leases[:rows], [30] * rows)
    assert captures.made == 3
    for _ in range(2):
        runner.decode([5], leases[:1], [30])
    assert captures.made == 4


def test_a_step_that_cannot_be_captured_is_launched_from_then_on(
    checkpoint: ChatCheckpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def refuse(run: Run) -> Run:
        calls.append(run)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setitem(CAPTURES, DEVICE.type, lambda: refuse)
    runner, plain = new_runner(checkpoint), new_runner(checkpoint)
    runner.use_graphs()
    leases, others = begin(runner, [30]), begin(plain, [30])
    expected = plain.decode([5], others, [30])
    for _ in range(3):
        assert (runner.decode([5], leases, [30]) - expected).abs().max() < CLOSE
    assert len(calls) == 1
    assert not runner.has_captured
    assert "operation not permitted" in capsys.readouterr().err


def test_a_step_without_memory_for_its_graph_is_launched_for_a_while(
    checkpoint: ChatCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_graphs, "RETRIED_AFTER", 3)
    full, asked = True, []
    captures = Captures()

    def capture(run: Run) -> Run:
        asked.append(run)
        if full:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return captures(run)

    monkeypatch.setitem(CAPTURES, DEVICE.type, lambda: capture)
    runner = new_runner(checkpoint)
    runner.use_graphs()
    leases = begin(runner, [30])
    for _ in range(6):
        runner.decode([5], leases, [30])
    assert len(asked) == 1
    full = False
    runner.decode([5], leases, [30])
    assert captures.made == 1


def test_graphs_give_their_memory_up_for_a_while(checkpoint: ChatCheckpoint, captures: Captures) -> None:
    runner = new_runner(checkpoint)
    assert not runner.give_up_graphs()
    runner.use_graphs()
    leases = begin(runner, [30])
    for _ in range(2):
        runner.decode([5], leases, [30])
    assert runner.give_up_graphs()
    assert not runner.has_captured
    assert not runner.give_up_graphs()
    for _ in range(3):
        runner.decode([5], leases, [30])
    assert captures.made == 1


def test_buffers_that_move_have_the_memory_of_graphs_at_once(checkpoint: ChatCheckpoint, captures: Captures) -> None:
    runner = new_runner(checkpoint)
    runner.use_graphs()
    leases = begin(runner, [30])
    for move in (lambda: runner.kv_cache.reserve(leases[0], 900), lambda: runner.kv_cache.clear()):
        for _ in range(2):
            runner.decode([5], leases, [30])
        assert runner.has_captured
        move()
        assert not runner.has_captured


def test_prompts_that_share_a_pass_have_the_logits_that_they_have_alone(checkpoint: ChatCheckpoint) -> None:
    """One of them continues a text, one ends with its page."""
    alone, together = new_runner(checkpoint), new_runner(checkpoint)
    for runner in (alone, together):
        runner.kv_cache.set_capacity(2**16)
    starts, lengths = (40, 0, 0, 0), (75, 1, 64, 33)
    chunks, results = {}, {}
    for runner in (alone, together):
        leases = [runner.kv_cache.begin(None, [])[0] for _ in lengths]
        for number, (lease, start, length) in enumerate(zip(leases, starts, lengths, strict=True)):
            assert runner.kv_cache.reserve(lease, length + 1)
            if start:
                runner.prefill([Chunk(text(length, number)[:start], lease, 0, length)])
        chunks[runner] = [
            Chunk(text(length, number)[start:], lease, start, length)
            for number, (lease, start, length) in enumerate(zip(leases, starts, lengths, strict=True))
        ]
    results[together] = together.prefill(chunks[together])
    results[alone] = torch.cat([alone.prefill([chunk]) for chunk in chunks[alone]])
    assert (results[together] - results[alone]).abs().max() < CLOSE
    order = [0, 2, 3, 1]  # the longest first
    after = [
        runner.decode([7] * 4, [chunks[runner][row].lease for row in order], [lengths[row] for row in order])
        for runner in (together, alone)
    ]
    assert (after[0] - after[1]).abs().max() < CLOSE, "what they wrote is the same too"


def test_a_load_finds_that_prompts_may_share_a_pass(checkpoint: ChatCheckpoint) -> None:
    assert checkpoint.batching.packs
    assert checkpoint.batching.graphs == (DEVICE.type == "cuda")


CAPTURED = set(TOGETHER) - {"phi-longrope", "phimoe", "llama4"}


@pytest.mark.daily("gemma3", "llama4")
@pytest.mark.parametrize("name", TOGETHER)
def test_a_load_finds_whose_steps_a_graph_repeats(name: str, tmp_path: Path, captures: Captures) -> None:
    """Not those whose code reads numbers of a step, or counts its tokens in Python."""
    checkpoint = load_chat(ChatSpec(name, TOGETHER[name](tmp_path / name), dtype="float32"), DEVICE)
    assert checkpoint.batching.graphs == (name in CAPTURED), (checkpoint.batching, captures.made)
    assert any("kernel by kernel" in note for note in checkpoint.found.notes) == (name not in CAPTURED)


async def test_answers_by_graphs_are_those_of_launched_steps(tmp_path: Path, captures: Captures) -> None:
    """With all that a request may ask for, more of them than there are rows, and a cache too small for all."""
    spec = ChatSpec("qwen", make_qwen(tmp_path / "qwen"), max_batch=3, dtype="float32")
    jobs = [
        ChatJob(
            f"{number}", spec, ({"role": "user", "content": "abc" * number},), seed=number, time_limit_s=240,
            max_tokens=20 + 3 * number, n=1 + number % 2,
            sampling=ChatSampling(temperature=number % 3 / 2, frequency_penalty=0.5 * (number % 2)),
        )
        for number in range(1, 9)
    ]  # fmt: skip
    tokens = 3 * 128 * 2 * 2 * 2 * 16 * 4
    by_graphs, launched = ChatEngine(DEVICE, cache_bytes=tokens), ChatEngine(DEVICE, cache_bytes=tokens)
    assert (await by_graphs.load(spec)).batching.graphs
    del CAPTURES[DEVICE.type]
    assert not (await launched.load(spec)).batching.graphs
    expected = [[text_of(events, choice) for choice in range(job.n)]
                for job, events in zip(jobs, [await run(launched, job) for job in jobs], strict=True)]  # fmt: skip
    captures.repeated = 0
    CAPTURES[DEVICE.type] = lambda: captures
    together = await asyncio.gather(*(run(by_graphs, job) for job in jobs))
    assert all(isinstance(events[-1], ChatFinished) for events in together)
    written = [[text_of(events, choice) for choice in range(job.n)]
               for job, events in zip(jobs, together, strict=True)]  # fmt: skip
    assert written == expected
    assert captures.repeated > 20
