"""The memory of captured decode steps: the KV cache leaves some to them, and chats that need it get it back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.chat.engine import ChatEngine
from pipelines.chat.loading.checkpoint import load_chat
from pipelines.chat.model.decode_graphs import graph_bytes
from pipelines.chat.model.kv_pages import PAGE
from pipelines.chat.model.model_runner import Chunk, ModelRunner
from pipelines.device.graph_capture import CAPTURES, Run
from pipelines.device.memory import available_bytes
from pipelines.protocol.chat import ChatFinished, ChatJob, ChatSpec
from tests.engines.chat_jobs import letters, run
from tests.gpu.simulated.test_memory import GPU, others_take_all_but
from tests.support.recorded_steps import Captures
from tests.support.tiny_chat_checkpoints import make_qwen

POOL = 2**25


class Pooled(Captures):
    """Each of its graphs holds memory of the device."""

    def __call__(self, run: Run) -> Run:
        repeat, pool = super().__call__(run), torch.empty(POOL, dtype=torch.uint8, device=GPU)

        def with_pool() -> None:
            assert len(pool) == POOL
            repeat()

        return with_pool


async def test_a_chat_that_lacks_memory_gets_that_of_graphs(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = Pooled()
    monkeypatch.setitem(CAPTURES, "cuda", lambda: captures)
    spec = ChatSpec("qwen", make_qwen(tmp_path / "qwen"), dtype="float32")
    engine = ChatEngine(GPU, cache_bytes=2**26)
    assert (await engine.load(spec)).batching.graphs
    assert torch.cuda.memory_allocated() < POOL, "what was tried has left"
    short = ChatJob(
        "short", spec, ({"role": "user", "content": "abc"},), seed=0, time_limit_s=240, max_tokens=24,
        sampling=letters(),
    )  # fmt: skip
    before = captures.made
    assert isinstance((await run(engine, short))[-1], ChatFinished)
    assert captures.made > before
    long = replace(short, id="long", messages=({"role": "user", "content": "abc" * 100},))
    with others_take_all_but(gpu, 5_000):
        assert isinstance((await run(engine, long))[-1], ChatFinished)
    await engine.sleep()  # its thread would keep the memory from other tests


def test_the_kv_cache_grows_further_than_it_must_where_that_leaves_room_for_graphs(gpu: Any, tmp_path: Path) -> None:
    checkpoint = load_chat(ChatSpec("qwen", make_qwen(tmp_path / "qwen")), GPU)
    vocab_size = checkpoint.tokens.vocab_size
    runner = ModelRunner(checkpoint.model, GPU, vocab_size, checkpoint.batching.rules, capacity_tokens=2**20)
    runner.use_graphs(rows=4)
    cache = runner.kv_cache
    spare = graph_bytes(len(cache.cache.layers), 4, vocab_size)
    lease, _ = cache.begin(None, [])
    with torch.inference_mode():
        cache.reserve(lease, PAGE)
        runner.prefill([Chunk([5] * 8, lease, 0, 8)])
        page_bytes = PAGE * cache.token_bytes()
        with others_take_all_but(gpu, spare + 100 * page_bytes):
            for pages in range(2, 80):
                assert cache.reserve(lease, pages * PAGE)
                assert available_bytes(GPU) >= spare
            assert cache.reserve(lease, 200 * PAGE), "what a chat needs goes before graphs"
