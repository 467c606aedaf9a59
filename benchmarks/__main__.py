"""`make bench`: the server against the bare pipeline, many calls against one, a draft against a 4K image, calls that
join others against the best batch, a mix of calls against their order, equal calls against a queue, a swap against the
disk. All in one run and as ratios, because machines differ and are noisy. With --base, this checkout against another
commit, in rounds that alternate (compare).

Writes bench.json and bench.png into the folder (default: bench-results).
"""

import argparse
import json
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.bare import DEVICE
from benchmarks.calls import DRAFT, concurrency, fairness, first_image, overhead
from benchmarks.compare import compare, table
from benchmarks.equal_calls import busy_cores, equal_calls
from benchmarks.joining import TRACE_SIDES, Waits, mixed_trace, newcomers, percentile, staggered
from benchmarks.pairs import MOST_PAIRS
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
    parser.add_argument("--base", metavar="COMMIT", help="compare this checkout with a commit instead")
    parser.add_argument("--pairs", type=int, default=MOST_PAIRS, help="at most so many rounds of both, with --base")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as home:
        if options.base is None:
            _measure_ratios(Path(home), folder, console)
        else:
            _compare(options.base, options.pairs, Path(home), folder, console)


def _measure_ratios(home: Path, folder: Path, console: Console) -> None:
    settings = Settings()
    catalog = load_catalog(settings.model_configs, settings.weights)
    configs = home / "model_configs"  # a copy: a swap writes to it
    shutil.copytree(settings.model_configs, configs)
    server = Server(home, settings.weights.resolve(), configs)
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


def _compare(base: str, most_pairs: int, home: Path, folder: Path, console: Console) -> None:
    found = []
    for each in compare(base, home, most_pairs):
        console.print(f"{each.name}: {each.verdict}")
        found.append(each)
    console.print(table(found, base))
    file = folder / "compared.json"
    file.write_text(json.dumps({"base": base, "found": [asdict(each) for each in found]}, indent=1) + "\n")
    console.print(f"Written: {file}")


def measure(server: Server, catalog: Catalog) -> Iterator[str | Ratio]:
    """What is measured next, and the ratios as they are found."""
    default, draft = catalog.models[catalog.default], catalog.models[DRAFT]
    yield "a start"
    ready, first = first_image(server, catalog)
    yield Ratio("(d) first start: first image / ready", first[:1], ready[:1])
    yield Ratio("(d) later starts: first image / ready", first[1:], ready[1:])
    for model in (default, draft):
        yield f"one 1K call of {model.name}"
        bare, served = overhead(server, model)
        yield Ratio(f"(a) call / bare pipeline, {model.checkpoint.name}", served, bare, target=1.03)
    for model in (default, draft):
        yield f"eight calls at once of {model.name}"
        bare, served = concurrency(server, model)
        yield Ratio(f"(b) 8 calls / best bare batch, {model.checkpoint.name}", served, bare, target=1.05)
    yield "a draft during a 4K image"
    times = fairness(server)
    yield Ratio("(c) draft during a 4K image / alone", times.draft_beside, times.draft_alone, target=1.5)
    yield Ratio("(c) 4K image, overtaken / alone", times.large_overtaken, times.large_alone, target=1.1)
    yield f"four calls of other steps, half a step apart, of {draft.name}"
    joined = staggered(draft, JOINING_PX)
    step_s = joined.bare.step_s
    yield Ratio("(f) a bare step of 4 images / 4 steps", [step_s[4]], [4 * step_s[1]])
    yield Ratio("(f) 4 staggered calls / best bare batch", joined.all_s, [joined.bare.best_s()], target=1.05)
    yield "calls that join one with long steps"
    with random_model(draft, wide_pipeline(), NEWCOMERS_PX) as wide:
        join = newcomers(wide, NEWCOMERS_PX)
    pair_s = join.bare.step_s[2]
    yield Ratio("(f) long steps: a bare step of 2 images / 2 steps", [pair_s], [2 * join.bare.step_s[1]])
    name = "(f) long steps: arrival to end of first step / a bare step of 2"
    yield Ratio(name, join.first_step_s, [pair_s], target=1.5)
    yield "a mix of long and short calls"
    with random_model(draft, even_pipeline(), max(EQUAL_PX, TRACE_SIDES[-1])) as even:
        yield from _mixed(mixed_trace(even))
        yield from _equal_calls("a network that gains nothing", even, EQUAL_PX, draft.steps, last=1.02)
    with random_model(draft, gaining_pipeline(), GAINING_PX) as gaining:
        yield from _equal_calls("a network that gains", gaining, GAINING_PX, GAINING_STEPS, last=1.0)
    yield "a swap"
    with large_checkpoint(default) as checkpoint:
        swap = swap_times(server, default, checkpoint)
    reading = f"reading its {swap.megabytes:.0f} MB"
    yield Ratio(f"(e) later swaps / {reading}", swap.again_s, swap.read_s[1:], target=2)
    yield Ratio(f"(e) first swap of a checkpoint / {reading}", [swap.first_s], swap.read_s[:1], target=4)
    yield Ratio(f"(e) first swap, until all was tried / {reading}", [swap.tried_s], swap.read_s[:1])


def _mixed(rounds: Sequence[tuple[Waits, Waits]]) -> Iterator[Ratio]:
    """The short calls of a mix: by the clock, and by what was done before them."""
    for percent in (50, 99):
        in_order, scheduled = ([percentile(each.seconds, percent) for each in way] for way in zip(*rounds, strict=True))
        yield Ratio(f"(g) short calls, p{percent} / in order of arrival", scheduled, in_order, target=0.25)
    done = [percentile(scheduled.done, 99) for _, scheduled in rounds]
    name = "(g) steps done when 99 % of the short calls were answered / all"
    yield Ratio(name, done, [1.0] * len(done), target=0.25, unit="")


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
