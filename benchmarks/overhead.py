"""What the server adds to a picture: a 1K call through HTTP over the bare diffusers call, in one run.

The bare call is made in this process, with the same weights, prompt, seed, steps and threads, and ends with the decoded
picture; the served one adds HTTP, ledger, queue, PNG, disk and the way back. Rounds alternate, so that a machine that
slows down slows both. Read the ratio of the medians: 1.05 means that the server costs 5 %.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from pipelines.quiet import quiet_libraries  # noqa: E402

quiet_libraries()

import httpx  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.jobs import bench_job  # noqa: E402
from pipelines.checkpoints import load_checkpoint  # noqa: E402
from server.settings import Settings  # noqa: E402
from tests.harness import Server  # noqa: E402

ROUNDS = 5
MODELS = ("alpha-image-2-count", "beta-2.5-flash-image-count")


def main() -> None:
    """Print the table and the ratios as JSON."""
    settings = Settings()
    with tempfile.TemporaryDirectory() as home:
        server = Server(Path(home), settings.weights, settings.model_configs).start()
        try:
            rows = [(model, *compare(server, model)) for model in MODELS]
        finally:
            server.stop()
    table = Table("Model", "Bare pipeline", "Through the server", "Ratio", title="One 1K picture, medians")
    for model, bare_s, served_s in rows:
        table.add_row(model, f"{bare_s:.2f} s", f"{served_s:.2f} s", f"{served_s / bare_s:.3f}")
    Console().print(table)
    print(json.dumps({model: round(served_s / bare_s, 4) for model, bare_s, served_s in rows}))


def compare(server: Server, model: str) -> tuple[float, float]:
    """Median seconds: bare, served."""
    job = bench_job(model, 1024, 1024)
    pipeline = load_checkpoint(job.checkpoint, torch.device("cpu")).pipeline("")
    body = {"model": model, "prompt": job.prompt, "size": "1024x1024", "seed": job.seed}

    def bare() -> None:
        pipeline(
            prompt=job.prompt, width=1024, height=1024, num_inference_steps=job.steps, guidance_scale=job.guidance,
            generator=torch.Generator().manual_seed(job.seed),
        )  # fmt: skip

    with server.http() as client:
        times = [(timed(bare), timed(lambda: post(client, body))) for _ in range(ROUNDS + 1)][
            1:
        ]  # the first warms both
    return statistics.median(b for b, _ in times), statistics.median(s for _, s in times)


def post(client: httpx.Client, body: dict[str, object]) -> None:
    """One call."""
    client.post("/v1/images/generations", json=body).raise_for_status()


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
