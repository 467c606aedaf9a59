"""Chat: tokens a second and time to the first token, at 1, 8 and 32 streams, for this server and two others; a long
prompt beside 31 of 500 tokens; the second turn of an agent; and on a CPU the same weights in four bits.

    python -m benchmarks.chat [--json FILE] [--checkpoint FOLDER] [--streams N ...] [--rounds N] [--tokens N]
                              [--long TOKENS] [--agent TOKENS] [--layers N] [--alone]

The others are `transformers serve --continuous-batching`, over HTTP like ours, and bare `generate`, which gets all
prompts at once as one padded batch in this process, a long one by itself: no HTTP, no streaming, no requests that
arrive later. All three load the same folder and answer the same prompts greedily with the same `max_tokens`. They run
in alternation, so that a machine that slows down slows all of them. Read the ratios of the medians; on a CPU that other
programs use, those of the processor time, which is that of a system's own processes.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.device.offline import quiet_libraries

quiet_libraries()

import httpx  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from benchmarks.chat_weights import LAYERS, make_random_chat  # noqa: E402
from tests.support.harness import REPOSITORY, Server  # noqa: E402
from tests.support.processes import processor_s  # noqa: E402

STREAMS = (1, 8, 32)
LIMIT_S = 3000.0
SHORT = 500  # tokens of prompts beside a long one
WORDS = ("the", "red", "boat", "and", "a", "blue", "house", "stand", "near", "some", "small", "green", "trees")


@dataclass(frozen=True, slots=True)
class Measured:
    """One round of one system."""

    tokens_per_s: float
    first_token_s: float  # median over the streams
    processor_s: float  # of the system's processes, for a token


@dataclass(frozen=True, slots=True)
class Load:
    """What a system is asked at once."""

    prompts: tuple[str, ...]
    tokens: int  # of each answer
    first_is_long: bool = False

    @classmethod
    def of(cls, streams: int, tokens: int) -> "Load":
        """Return prompts of 8 to 24 words."""
        texts = (" ".join(WORDS[(3 * i + j) % len(WORDS)] for j in range(8 + i % 17)) for i in range(streams))
        return cls(tuple(texts), tokens)


Run = Callable[[Load], Measured]


def main() -> None:
    """Print the tables; with --json, write the figures to a file too."""
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.checkpoint or make_random_chat(Path(scratch) / "random", options.layers)
        with our_server(Path(scratch), folder) as ours, contextlib.ExitStack() as others:
            systems = {"darkroom": ours}
            if not options.alone:
                systems["transformers serve"] = others.enter_context(their_server(folder))
            systems["generate"] = bare_generate(folder)
            loads = {f"{streams} streams": Load.of(streams, options.tokens) for streams in options.streams}
            if options.long:
                loads[f"{options.long} tokens beside 31 of {SHORT}"] = beside(options.long, options.tokens)
            figures = {name: measure(systems, load, name, options.rounds) for name, load in loads.items()}
            print_table(figures, options)
            if not options.checkpoint and not torch.cuda.is_available():
                print_table(in_four_bits(Path(scratch), ours, options), options)
            if options.agent:
                first, second = second_turn(ours, options.agent, options.rounds)
                print(f"An agent's second turn at {options.agent} tokens: {second:.2f} s after {first:.2f} s, "
                      f"{second / first:.3f} of the first")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps({name: as_json(systems) for name, systems in figures.items()}, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="a transformers folder (random weights of a real architecture)")
    parser.add_argument("--streams", type=int, nargs="*", default=STREAMS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (64)")
    parser.add_argument(
        "--long", type=int, default=16_000, help="tokens of one prompt beside 31 short ones; 0 for none"
    )
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"of the random weights ({LAYERS})")
    parser.add_argument("--agent", type=int, default=8_000, help="tokens of an agent's first turn; 0: none")
    parser.add_argument("--alone", action="store_true", help="without transformers serve")
    return parser.parse_args()


def in_four_bits(scratch: Path, ours: Run, options: argparse.Namespace) -> dict[str, dict[str, Measured]]:
    """Measure random weights that stay in four bits, beside those of 32."""
    home = scratch / "four-bits"
    folder = make_random_chat(home / "random", options.layers, four_bits=True)
    with our_server(home, folder) as packed:
        loads = {f"{streams} streams": Load.of(streams, options.tokens) for streams in options.streams}
        loads["1500 tokens"] = Load((_text(1500),), 1)
        systems = {"darkroom": packed, "in float32": ours}
        return {name: measure(systems, load, f"four bits, {name}", options.rounds) for name, load in loads.items()}


def beside(length: int, tokens: int) -> Load:
    """Return one prompt of about so many tokens, which are characters for the random weights, and 31 short ones."""
    return Load((_text(length), *(f"{i} {_text(SHORT)}" for i in range(31))), tokens, first_is_long=True)


def _text(length: int) -> str:
    return " ".join(WORDS[i * i % len(WORDS)] for i in range(length))[:length]


def second_turn(ours: Run, length: int, rounds: int) -> tuple[float, float]:
    """Return the median processor time until the first token of an agent's first turn, and of the second: the same
    text, and 300 characters more."""
    first, second = [], []
    for number in range(rounds + 1):
        text = f"Task {number}. {_text(length)}"
        measured = [ours(Load((prompt,), 1)) for prompt in (text, f"{text} {_text(300)}")]
        if number:
            first.append(measured[0].processor_s)
            second.append(measured[1].processor_s)
    return statistics.median(first), statistics.median(second)


def measure(systems: dict[str, Run], load: Load, name: str, rounds: int) -> dict[str, Measured]:
    """Medians over the rounds, after one of warmup."""
    found = []
    for number in range(rounds + 1):
        asked = replace(load, prompts=tuple(f"{number} {prompt}" for prompt in load.prompts))  # none is computed yet
        measured = {system: run(asked) for system, run in systems.items()}
        speeds = ", ".join(
            f"{system} {figures.tokens_per_s:.1f} ({figures.processor_s * 1000:.0f} ms of processor a token)"
            for system, figures in measured.items()
        )
        print(f"{name}, round {number} of {rounds}, tokens a second: {speeds}", file=sys.stderr)
        found += [measured] if number else []
    return {
        system: Measured(
            statistics.median(measured[system].tokens_per_s for measured in found),
            statistics.median(measured[system].first_token_s for measured in found),
            statistics.median(measured[system].processor_s for measured in found),
        )
        for system in systems
    }


def as_json(systems: dict[str, Measured]) -> dict[str, dict[str, float]]:
    """Figures and ratios."""
    darkroom = systems["darkroom"]
    return {
        name: {
            "tokens_per_s": round(measured.tokens_per_s, 1),
            "first_token_s": round(measured.first_token_s, 4),
            "processor_s": round(measured.processor_s, 5),
            "darkroom_is_faster_by": round(darkroom.tokens_per_s / measured.tokens_per_s, 3),
            "processor_ratio": round(measured.processor_s / darkroom.processor_s, 3),
        }
        for name, measured in systems.items()
    }


def print_table(figures: dict[str, dict[str, Measured]], options: argparse.Namespace) -> None:
    """Print figures of every load."""
    rounds, tokens = options.rounds, options.tokens
    title = f"{tokens} tokens a stream, medians of {rounds} rounds, {torch.get_num_threads()} threads"
    head = ("Load", "System", "Tokens a second", "First token", "Darkroom is faster by", "by processor time")
    table = Table(*head, title=title)
    for load, systems in figures.items():
        for name, figure in as_json(systems).items():
            speed, first_s = f"{figure['tokens_per_s']:.1f}", f"{figure['first_token_s'] * 1000:.0f} ms"
            ratios = (f"{figure['darkroom_is_faster_by']:.2f} x", f"{figure['processor_ratio']:.2f} x")
            table.add_row(load, name, speed, first_s, *ratios)
    Console(width=120).print(table)


@contextmanager
def our_server(scratch: Path, folder: Path) -> Iterator[Run]:
    """`darkroom serve` with this one model."""
    configs, weights = scratch / "model_configs", scratch / "weights"
    configs.mkdir()
    for file in (REPOSITORY / "model_configs").glob("*.toml"):
        (configs / file.name).write_text(file.read_text())
    (configs / "chat.toml").write_text(
        f'default = "bench"\n[[models]]\nname = "bench"\ncheckpoint = {json.dumps(str(folder.resolve()))}\n'
    )
    for starter in ("starter-alpha", "starter-beta"):  # not loaded, but the server wants them to exist
        (weights / starter).mkdir(parents=True, exist_ok=True)
    server = Server(scratch / "home", weights, configs, {"preload": "false"}).start()
    try:
        assert server.process is not None
        pid = server.process.pid
        yield lambda load: over_http(f"{server.base}/v1", "bench", server.key, load, pid)
    finally:
        server.stop()


@contextmanager
def their_server(folder: Path) -> Iterator[Run]:
    """`transformers serve --continuous-batching`."""
    with socket.socket() as check:
        check.bind(("127.0.0.1", 0))
        port = check.getsockname()[1]
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"  # as in ours, whatever the files have
    options = ["--continuous-batching", "--dtype", dtype, "--port", str(port)]
    command = [str(Path(sys.executable).parent / "transformers"), "serve", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        wait_for(f"http://localhost:{port}/health", process)
        base = f"http://localhost:{port}/v1"
        yield lambda load: over_http(base, str(folder.resolve()), "none", load, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    """Raises RuntimeError if the process ends or does not answer in time."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(address, trust_env=False).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise RuntimeError("transformers serve does not answer; does `pip install transformers[serving]` help?")


def over_http(base: str, model: str, key: str, load: Load, pid: int) -> Measured:
    """All streams at once, to the server with this process."""
    before = processor_s(pid)
    tokens_per_s, first_s, tokens = asyncio.run(_over_http(base, model, key, load))
    return Measured(tokens_per_s, first_s, (processor_s(pid) - before) / tokens)


async def _over_http(base: str, model: str, key: str, load: Load) -> tuple[float, float, int]:
    limits = httpx.Limits(max_connections=len(load.prompts))
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(timeout=LIMIT_S, limits=limits, headers=headers, trust_env=False) as client:
        started_at = time.perf_counter()
        asked = (_stream(client, base, model, prompt, load.tokens) for prompt in load.prompts)
        results = await asyncio.gather(*asked)
        wall_s = time.perf_counter() - started_at
    tokens = sum(written for written, _ in results)
    return tokens / wall_s, statistics.median(first_s for _, first_s in results), tokens


async def _stream(client: httpx.AsyncClient, base: str, model: str, prompt: str, max_tokens: int) -> tuple[int, float]:
    """Tokens by the server's own count, and seconds to the first one."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_at, first_s, tokens = time.perf_counter(), 0.0, 0
    async with client.stream("POST", f"{base}/chat/completions", json=body) as response:
        if response.is_error:
            raise RuntimeError(f"{base}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if not first_s and any(choice["delta"].get("content") for choice in chunk["choices"]):
                first_s = time.perf_counter() - started_at
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    return tokens, first_s or time.perf_counter() - started_at  # an answer without text counts to its end


def bare_generate(folder: Path) -> Run:
    """`generate` in this process."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32 if not torch.cuda.is_available() else "auto"
    )
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")

    def generate(prompts: Sequence[str], tokens: int) -> int:
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
        ).to(model.device)
        rows = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)[:, inputs["input_ids"].shape[1] :]
        eos_ids = set(model.generation_config.eos_token_id)
        return sum(next((i + 1 for i, token in enumerate(row) if token in eos_ids), len(row)) for row in rows.tolist())

    def timed(load: Load, tokens: int) -> tuple[float, int, float]:
        batches = [load.prompts[:1], load.prompts[1:]] if load.first_is_long else [load.prompts]
        started_at, worked = time.perf_counter(), time.process_time()
        written = sum(generate(prompts, tokens) for prompts in batches)
        return time.perf_counter() - started_at, written, time.process_time() - worked

    def run(load: Load) -> Measured:
        first_s = 0.0 if load.first_is_long else timed(load, 1)[0]
        wall_s, written, worked_s = timed(load, load.tokens)
        return Measured(written / wall_s, first_s, worked_s / written)

    return run


if __name__ == "__main__":
    main()
