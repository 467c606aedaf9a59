"""What the server adds to a picture: a 1K call through HTTP over the same job in a bare engine, in one run.

Both run the same checkpoint, prompt, seed and steps in processes with the same threads; the rounds alternate, so that a
machine that slows down slows both. Read the ratio of the medians: 1.05 means that the server costs 5 %.
"""

import asyncio
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from pipelines.types import Encoding, Finished, ImageJob  # noqa: E402
from server.engine_host import EngineHost  # noqa: E402
from server.serving import build_starters, read_catalog  # noqa: E402
from server.settings import Settings  # noqa: E402
from tests.harness import Server  # noqa: E402

ROUNDS = 5
MODELS = ("alpha-image-2-count", "beta-2.5-flash-image-count")


def main() -> None:
    """Print the table and the ratios as JSON."""
    settings = Settings()
    build_starters(settings.weights, force=False)
    with tempfile.TemporaryDirectory() as home:
        server = Server(Path(home), settings.weights, settings.model_configs).start()
        try:
            rows = asyncio.run(compare(server, settings))
        finally:
            server.stop()
    table = Table("Model", "Bare engine", "Through the server", "Ratio", title="One 1K picture, medians")
    for model, bare_s, served_s in rows:
        table.add_row(model, f"{bare_s:.2f} s", f"{served_s:.2f} s", f"{served_s / bare_s:.3f}")
    Console().print(table)
    print(json.dumps({model: round(served_s / bare_s, 4) for model, bare_s, served_s in rows}))


async def compare(server: Server, settings: Settings) -> list[tuple[str, float, float]]:
    """Medians in seconds per model: bare, served."""
    catalog = read_catalog(settings)
    bare = EngineHost(catalog.checkpoints, max_jobs=1)
    await bare.start()
    await bare.wait_ready()
    rows = []
    headers = {"Authorization": f"Bearer {server.key}"}
    async with httpx.AsyncClient(base_url=server.base, headers=headers, timeout=600, trust_env=False) as client:
        for name in MODELS:
            model = catalog.models[name]
            job = ImageJob(
                id="bench",
                checkpoint=model.checkpoint,
                prompt="a red boat at sunset",
                negative_prompt="",
                width_px=1024,
                height_px=1024,
                n=1,
                steps=model.steps,
                guidance=model.checkpoint.sampling.guidance,
                strength=model.checkpoint.sampling.strength,
                seed=1,
                references=(),
                mask=None,
                encoding=Encoding(),
                metadata={},
                time_limit_s=600,
            )
            body = {"model": name, "prompt": job.prompt, "size": "1024x1024", "seed": 1}
            times: dict[str, list[float]] = {"bare": [], "served": []}
            for number in range(ROUNDS + 1):
                job = dataclasses.replace(job, id=f"bench-{number}")
                began = time.perf_counter()
                events = [event async for event in bare.submit(job)]
                if not isinstance(events[-1], Finished):
                    raise SystemExit(f"the bare engine failed: {events[-1]}")
                middle = time.perf_counter()
                (await client.post("/v1/images/generations", json=body)).raise_for_status()
                if number:  # the first round warms both
                    times["bare"].append(middle - began)
                    times["served"].append(time.perf_counter() - middle)
            rows.append((name, statistics.median(times["bare"]), statistics.median(times["served"])))
    await bare.stop()
    return rows


if __name__ == "__main__":
    main()
