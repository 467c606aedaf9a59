"""Chat: what a decode step takes, launched kernel by kernel and as a graph, and prompts one by one and in one pass."""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.report import Report
from pipelines.chat.model.batching import find_batching
from pipelines.chat.model.model_runner import Chunk, ModelRunner

ROOM = 80  # tokens that rows may grow by
VOCABULARY = 49_152
LOADS = ((1, 100), (8, 100), (32, 100), (32, 2000), (1, 16_000))  # rows, and the tokens of each


async def decoding(machine: Machine, report: Report) -> None:
    """Of random weights in Qwen3-1.7B's sizes."""
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    real = {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16}
    sizes: dict[str, int] = {**small, "head_dim": 16} if machine.tiny else {**real, "head_dim": 128}
    config = Qwen3Config(
        vocab_size=VOCABULARY, num_key_value_heads=sizes["num_attention_heads"] // 2, tie_word_embeddings=True, **sizes
    )
    torch.backends.cuda.enable_cudnn_sdp(False)  # as when a chat model is loaded
    with torch.inference_mode():
        model = machine.make(lambda: Qwen3ForCausalLM(config))
        found = find_batching(model, machine.device, VOCABULARY, 32_768)
        report.add("a load finds: prompts share a pass", found.packs, goal="True")
        report.add("a load finds: steps can be captured", found.graphs, goal="True" if machine.is_gpu else "")
        for rows, length in ((1, 20), (3, 20)) if machine.tiny else LOADS:
            for captured in (False, True) if machine.is_gpu and not machine.tiny else (False,):
                runner = ModelRunner(model, machine.device, VOCABULARY, found.rules, 2**17)
                if captured:
                    runner.use_graphs()
                _measure(machine, report, runner, rows, length, captured=captured)
                del runner
                machine.free()
            _generate(machine, report, model, rows, length)


def _measure(machine: Machine, report: Report, runner: ModelRunner, rows: int, length: int, *, captured: bool) -> None:
    facts: dict[str, Any] = {"rows": rows, "length": length}
    texts = torch.randint(5, 200, (rows, length)).tolist()
    leases = [runner.kv_cache.begin(None, [])[0] for _ in texts]
    assert all(runner.kv_cache.reserve(lease, length + ROOM) for lease in leases)
    chunks = [
        Chunk(text[start : start + runner.prefill_chunk], lease, start, length)
        for text, lease in zip(texts, leases, strict=True)
        for start in range(0, length, runner.prefill_chunk)
    ]
    if not captured:
        together = max(1, runner.prefill_chunk // length)
        for name, count in (("one by one", 1), ("in shared passes", together)):
            passes = [chunks[first : first + count] for first in range(0, len(chunks), count)]
            taken = machine.timed(functools.partial(_prefill, runner, passes), 1)
            report.add(f"prompts {name}", 1e3 * taken, "ms", **facts)
    lengths = [length] * rows

    def step() -> None:
        runner.decode([5] * rows, leases, lengths).argmax(dim=-1).tolist()
        lengths[:] = [each + 1 for each in lengths]

    first, steps = _seconds(step, 3), _seconds(step, 3 if machine.tiny else 40)
    name = "a step as a graph" if captured else "a step"
    report.add(name, 1e3 * statistics.median(steps), "ms", first_ms=1e3 * max(first), **facts)


def _prefill(runner: ModelRunner, passes: Sequence[Sequence[Chunk]]) -> None:
    for chunks in passes:
        runner.prefill(chunks)


def _generate(machine: Machine, report: Report, model: Any, rows: int, length: int) -> None:
    prompt = torch.randint(5, 200, (rows, length), device=machine.device)
    tokens = 4 if machine.tiny else 20

    def generate(count: int) -> Callable[[], object]:
        return lambda: model.generate(prompt, max_new_tokens=count, min_new_tokens=count, do_sample=False)

    one, all_of_them = (machine.timed(generate(count), 1) for count in (1, tokens))
    report.add("a step of generate", 1e3 * (all_of_them - one) / (tokens - 1), "ms", rows=rows, length=length)


def _seconds(work: Callable[[], None], rounds: int) -> list[float]:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return taken
