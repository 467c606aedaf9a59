"""Chat: tokens a second and time to the first token, at 1, 8 and 32 streams, for this server and two others.

    python -m benchmarks.chat [--json FILE] [--checkpoint FOLDER]

The others are `transformers serve --continuous-batching`, over HTTP like ours, and bare `generate`, which gets all
prompts at once as one padded batch in this process: no HTTP, no streaming, no requests that arrive later. All three
load the same folder and answer the same prompts greedily with the same `max_tokens`. They run in alternation, so that a
machine that slows down slows all of them. Read the ratios of the medians.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipelines.device.offline import quiet_libraries

quiet_libraries()

import httpx  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from tests.support.harness import REPOSITORY, Server  # noqa: E402

STARTER = REPOSITORY / "weights" / "starter-chat"
STREAMS = (1, 8, 32)
TOKENS = 64
ROUNDS = 3
LIMIT_S = 600.0
WORDS = ("the", "red", "boat", "and", "a", "blue", "house", "stand", "near", "some", "small", "green", "trees")


@dataclass(frozen=True, slots=True)
class Measured:
    """One round of one system."""

    tokens_per_s: float
    first_token_s: float  # median over the streams


def main() -> None:
    """Print the table; with --json, write the figures to a file too."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--checkpoint", type=Path, default=STARTER, help="a transformers folder (starter-chat)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        our_server(Path(scratch), options.checkpoint) as ours,
        their_server(options.checkpoint) as theirs,
    ):
        systems = {"darkroom": ours, "transformers serve": theirs, "generate": bare_generate(options.checkpoint)}
        figures = {streams: measure(systems, streams) for streams in STREAMS}
    print_table(figures)
    if options.json:
        options.json.write_text(
            json.dumps({str(streams): as_json(systems) for streams, systems in figures.items()}, indent=2)
        )


def prompts(streams: int) -> list[str]:
    """8 to 24 words each."""
    return [" ".join(WORDS[(3 * i + j) % len(WORDS)] for j in range(8 + i % 17)) for i in range(streams)]


Run = Callable[[int], Measured]


def measure(systems: dict[str, Run], streams: int) -> dict[str, Measured]:
    """Medians over the rounds, after one of warmup."""
    rounds = []
    for number in range(ROUNDS + 1):
        measured = {name: run(streams) for name, run in systems.items()}
        speeds = ", ".join(f"{name} {figures.tokens_per_s:.0f}" for name, figures in measured.items())
        print(f"{streams} streams, round {number} of {ROUNDS}, tokens a second: {speeds}", file=sys.stderr)
        rounds += [measured] if number else []
    return {
        name: Measured(
            statistics.median(measured[name].tokens_per_s for measured in rounds),
            statistics.median(measured[name].first_token_s for measured in rounds),
        )
        for name in systems
    }


def as_json(systems: dict[str, Measured]) -> dict[str, dict[str, float]]:
    """Figures and ratios."""
    darkroom = systems["darkroom"]
    return {
        name: {
            "tokens_per_s": round(measured.tokens_per_s, 1),
            "first_token_s": round(measured.first_token_s, 4),
            "darkroom_is_faster_by": round(darkroom.tokens_per_s / measured.tokens_per_s, 3),
        }
        for name, measured in systems.items()
    }


def print_table(figures: dict[int, dict[str, Measured]]) -> None:
    title = f"Up to {TOKENS} tokens a stream, medians of {ROUNDS} rounds, {torch.get_num_threads()} threads"
    table = Table("Streams", "System", "Tokens a second", "First token", "Darkroom is faster by", title=title)
    for streams, systems in figures.items():
        for name, figure in as_json(systems).items():
            speed, first_s = f"{figure['tokens_per_s']:.0f}", f"{figure['first_token_s'] * 1000:.0f} ms"
            table.add_row(str(streams), name, speed, first_s, f"{figure['darkroom_is_faster_by']:.2f} x")
    Console().print(table)


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
        yield lambda streams: over_http(f"{server.base}/v1", "bench", server.key, streams)
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
        yield lambda streams: over_http(f"http://localhost:{port}/v1", str(folder.resolve()), "none", streams)
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


def over_http(base: str, model: str, key: str, streams: int) -> Measured:
    """All streams at once."""
    return asyncio.run(_over_http(base, model, key, streams))


async def _over_http(base: str, model: str, key: str, streams: int) -> Measured:
    limits = httpx.Limits(max_connections=streams)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(timeout=LIMIT_S, limits=limits, headers=headers, trust_env=False) as client:
        started_at = time.perf_counter()
        results = await asyncio.gather(*(_stream(client, base, model, prompt) for prompt in prompts(streams)))
        wall_s = time.perf_counter() - started_at
    return Measured(sum(tokens for tokens, _ in results) / wall_s, statistics.median(first_s for _, first_s in results))


async def _stream(client: httpx.AsyncClient, base: str, model: str, prompt: str) -> tuple[int, float]:
    """Tokens by the server's own count, and seconds to the first one."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": TOKENS,
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

    def run(streams: int) -> Measured:
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts(streams)]
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
        ).to(model.device)

        def generate(tokens: int) -> tuple[float, int]:
            started_at = time.perf_counter()
            rows = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)[:, inputs["input_ids"].shape[1] :]
            eos_ids = set(model.generation_config.eos_token_id)
            written = sum(
                next((i + 1 for i, token in enumerate(row) if token in eos_ids), len(row)) for row in rows.tolist()
            )
            return time.perf_counter() - started_at, written

        first_s, _ = generate(1)
        wall_s, written = generate(TOKENS)
        return Measured(written / wall_s, first_s)

    return run


if __name__ == "__main__":
    main()
