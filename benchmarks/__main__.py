"""`make bench`: the server against the bare pipeline, many calls against one, a draft against a 4K image, calls that
join others against the best batch, a mix of calls against their order, equal calls against a queue, a swap against the
disk. All in one run and as ratios, because machines differ and are noisy.

Writes bench.json and bench.png into the folder (default: bench-results).
"""

import argparse
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.bare import DEVICE
from benchmarks.calls import DRAFT, concurrency, fairness, first_image, overhead
from benchmarks.equal_calls import busy_cores, equal_calls
from benchmarks.joining import TRACE_SIDES, mixed_trace, newcomers, percentile, staggered
from benchmarks.random_weights import even_pipeline, gaining_pipeline, random_model, wide_pipeline
from benchmarks.ratios import Ratio, show, write
from benchmarks.swap import large_checkpoint, swap_times
from server.catalog.images import Catalog, ImageModel, load_catalog
from server.settings import Settings
from tests.support.harness import Server

JOINING_PX = 1024  # below it, a starter's step is too short to be measured
EQUAL_PX = 512
GAINING_PX, GAINING_STEPS = 64, 12  # of 0.06 s
NEWCOMERS_PX = 96  # few tokens in a wide network: steps are long, and a CPU gains from batches


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default="bench-results")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings()
    catalog = load_catalog(settings.model_configs, settings.weights)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as home:
        configs = Path(home) / "model_configs"  # a copy: a swap writes to it
        shutil.copytree(settings.model_configs, configs)
        server = Server(Path(home), settings.weights.resolve(), configs)
        ratios = []
        try:
            for part in measure(server, catalog):
                if isinstance(part, str):
                    console.print(f"Measuring {part} ...")
                else:
                    console.print(f"  {part.name}: {part.value:.2f}")
                    ratios.append(part)
        finally:
            server.kill()
    device = f"{DEVICE.type}, {platform.machine()}"
    console.print(show(ratios, f"Darkroom on {device}"))
    write(ratios, device, folder)
    console.print(f"Written: {folder / 'bench.json'}, {folder / 'bench.png'}")


def measure(server: Server, catalog: Catalog) -> Iterator[str | Ratio]:
    """What is measured next, and the ratios as they are found."""
    default, draft = catalog.models[catalog.default], catalog.models[DRAFT]
    yield "a start"
    ready_s, first_s = first_image(server, catalog)
    yield Ratio("(d) first image / ready", first_s, ready_s)
    for model in (default, draft):
        yield f"one 1K call of {model.name}"
        bare_s, served_s = overhead(server, model)
        yield Ratio(f"(a) call / bare pipeline, {model.checkpoint.name}", served_s, bare_s, target=1.03)
    for model in (default, draft):
        yield f"eight calls at once of {model.name}"
        bare_s, served_s = concurrency(server, model)
        yield Ratio(f"(b) 8 calls / best bare batch, {model.checkpoint.name}", served_s, bare_s, target=1.05)
    yield "a draft during a 4K image"
    times = fairness(server)
    yield Ratio("(c) draft during a 4K image / alone", times["draft_with_large_s"], times["draft_alone_s"], target=1.5)
    yield Ratio("(c) 4K image, overtaken / alone", times["large_overtaken_s"], times["large_alone_s"], target=1.1)
    yield f"four calls of other steps, half a step apart, of {draft.name}"
    joined = staggered(draft, JOINING_PX)
    step_s = joined.bare.step_s
    yield Ratio("(f) a bare step of 4 images / 4 steps", step_s[4], 4 * step_s[1])
    yield Ratio("(f) 4 staggered calls / best bare batch", joined.all_s, joined.bare.best_s(), target=1.05)
    yield "calls that join one with long steps"
    with random_model(draft, wide_pipeline(), NEWCOMERS_PX) as wide:
        join = newcomers(wide, NEWCOMERS_PX)
    pair_s = join.bare.step_s[2]
    yield Ratio("(f) long steps: a bare step of 2 images / 2 steps", pair_s, 2 * join.bare.step_s[1])
    first_step_s = median(join.first_step_s)
    yield Ratio("(f) long steps: arrival to end of first step / a bare step of 2", first_step_s, pair_s, target=1.5)
    yield "a mix of long and short calls"
    with random_model(draft, even_pipeline(), TRACE_SIDES[-1]) as even:
        in_order, scheduled = mixed_trace(even)
        yield from _equal_calls("a network that gains nothing", even, EQUAL_PX, draft.steps, last=1.02)
    for percent in (50, 99):
        name = f"(g) short calls, p{percent} / in order of arrival"
        yield Ratio(name, percentile(scheduled, percent), percentile(in_order, percent), target=0.25)
    with random_model(draft, gaining_pipeline(), GAINING_PX) as gaining:
        yield from _equal_calls("a network that gains", gaining, GAINING_PX, GAINING_STEPS, last=1.0)
    yield "a swap"
    with large_checkpoint(default) as checkpoint:
        swap = swap_times(server, default, checkpoint)
    reading = f"reading its {swap.megabytes:.0f} MB"
    yield Ratio(f"(e) swap / {reading}", swap.again_s, swap.read_s, target=2)
    yield Ratio(f"(e) first swap of a checkpoint / {reading}", swap.first_s, swap.read_s)


def _equal_calls(name: str, model: ImageModel, side_px: int, steps: int, last: float) -> Iterator[str | Ratio]:
    """Eight calls at once against a queue of them: on idle cores, and beside another program on each."""
    conditions = (("idle cores", nullcontext, time.perf_counter), ("busy cores", busy_cores, time.process_time))
    for where, around, clock in conditions:
        yield f"eight equal calls of {name}, on {where}"
        with around():
            found = equal_calls(model, side_px, steps, clock)
        what = f"8 equal calls of {name} / in a queue, {where}"
        yield Ratio(f"(h) mean answer of {what}", found.at_once.mean_s, found.queue.mean_s, target=1.0)
        yield Ratio(f"(h) last answer of {what}", found.at_once.last_s, found.queue.last_s, target=last)


if __name__ == "__main__":
    main()
