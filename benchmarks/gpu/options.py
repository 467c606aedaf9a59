"""`[runtime]` on FLUX.1's size: what each option gains, and how far its image is from the plain one."""

import asyncio
import time
import traceback
from typing import Any

import torch

from benchmarks.gpu import images
from benchmarks.gpu.engine import Bench, Pixels, difference, serving
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.networks import flux_pipeline
from benchmarks.gpu.report import Report
from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.loading import compilation, runtime_options
from pipelines.protocol.images import StepCache

BACKENDS = ("_native_flash", "_flash_3", "native", "_native_cudnn", "flash", "sage")


async def attention(machine: Machine, report: Report) -> None:
    """The library's backends, those that are installed."""
    exact, plain_s = await _plain(machine, report)
    for name in BACKENDS[:2] if machine.tiny else BACKENDS:
        await _try(machine, report, f"attention = {name!r}", exact, plain_s, attention=name)


async def caches(machine: Machine, report: Report) -> None:
    """Step caches, alone and in two runs that take turns."""
    exact, plain_s = await _plain(machine, report)
    for cache in (StepCache("first-block", threshold=0.1), StepCache("taylorseer", interval=3)):
        await _try(machine, report, f"cache = {cache.method!r}", exact, plain_s, goal="1.6 s on an H200", cache=cache)


async def fp8(machine: Machine, report: Report) -> None:
    """Computed and stored float8."""
    exact, plain_s = await _plain(machine, report)
    if machine.has_fp8:
        await _try(machine, report, "quantize = 'fp8'", exact, plain_s, quantize="fp8")
    else:
        report.add("quantize = 'fp8'", "none", why="no float8 products by rows with this torch on this device")
    await _try(machine, report, "quantize = 'float8'", exact, plain_s, quantize="float8")


async def offload(machine: Machine, report: Report) -> None:
    """Weights on the host: the seconds of an image, and a draft beside a long one, which must not wait for its end."""
    exact, plain_s = await _plain(machine, report)
    for name in ("encoders", "model", "group"):
        await _try(machine, report, f"offload = {name!r}", exact, plain_s, offload=name)
        if not report.has_time:
            return
        try:
            await _offloaded_turns(machine, report, name)
        except (CheckpointError, RuntimeError) as error:
            report.add(f"offload = {name!r}: turns", "none", why=str(error).splitlines()[0][:200])
        await asyncio.sleep(0)  # what a refused load has left goes with its task
        machine.free()


async def _offloaded_turns(machine: Machine, report: Report, name: str) -> None:
    with serving(machine, flux_pipeline(machine), offload=name) as bench:
        await bench.engine.load(bench.spec)
        await images.take_turns(bench, report, (await bench.draw(bench.job()))[0])


async def compiled(machine: Machine, report: Report) -> None:
    """Compiled: how long loading takes, and that no later shape waits. Then with fp8 and a first-block cache."""
    exact, plain_s = await _plain(machine, report)
    if machine.tiny:  # kernels take minutes to build; tests/engines counts the graphs
        runtime_options.compile_denoiser = lambda _: None  # type: ignore[assignment]
    float8: dict[str, Any] = {"quantize": "fp8"} if machine.has_fp8 else {}
    cached = {**float8, "cache": StepCache("first-block", threshold=0.1)}
    sets = [({}, "4.3 s on an H200"), (float8, "2.5 s on an H200"), (cached, "1.6 s on an H200")]
    try:
        for more, goal in sets[1:2] if machine.tiny else sets:
            name = ", ".join(["compile", *more])
            torch.compiler.reset()  # else the set before counts towards the graphs that are kept
            await _try(machine, report, name, exact, plain_s, goal=goal, warm=not machine.tiny, compile=True, **more)
    finally:
        runtime_options.compile_denoiser = compilation.compile_denoiser


async def _plain(machine: Machine, report: Report) -> tuple[Pixels, float]:
    """The exact image and its seconds."""
    exact, taken = await _draw_plain(machine)
    machine.free()
    report.add("plain", taken, "s")
    return exact, taken


async def _draw_plain(machine: Machine) -> tuple[Pixels, float]:
    with serving(machine, flux_pipeline(machine)) as bench:
        (exact,) = await bench.draw(bench.job())
        return exact, await bench.timed(bench.job())


async def _try(
    machine: Machine, report: Report, name: str, exact: Pixels, plain_s: float, *, goal: str = "", warm: bool = False,
    **runtime: Any,
) -> None:  # fmt: skip
    """One set of options on fresh weights; what is refused is reported with the reason, as is what finds no time."""
    if not report.has_time:
        report.add(name, "none", why="the part's ten minutes are over")
        return
    machine.reset_peak()
    try:
        await _measure(machine, report, name, exact, plain_s, goal, warm=warm, **runtime)
    except CheckpointError as error:
        report.add(name, "none", why=str(error).splitlines()[0][:200])
    except Exception as error:  # the other options are still worth their time
        traceback.print_exc()
        report.add(name, "failed", why=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200])
    await asyncio.sleep(0)  # what a refused load has left goes with its task
    machine.free()


async def _measure(
    machine: Machine, report: Report, name: str, exact: Pixels, plain_s: float, goal: str, *, warm: bool, **runtime: Any
) -> None:
    with serving(machine, flux_pipeline(machine), **runtime) as bench:
        began = time.perf_counter()
        capabilities = await bench.engine.prepare(bench.spec) if warm else None
        notes = (capabilities or await bench.engine.load(bench.spec)).notes
        loaded_s = time.perf_counter() - began
        (image,) = await bench.draw(bench.job())
        taken = await bench.timed(bench.job())
        facts: dict[str, Any] = {"gain": plain_s / taken, "load_s": loaded_s, "peak_gib": machine.peak_gib}
        facts |= {**difference(image, exact), **({"notes": "; ".join(notes)} if notes else {})}
        report.add(name, taken, "s", goal=goal, **facts)
        await _shapes(bench, report, name, taken)
        await _turns(bench, report, name, image)


async def _shapes(bench: Bench, report: Report, name: str, plain_s: float) -> None:
    """The first call of two rows: anything that is built for it now would stall all others."""
    began = time.perf_counter()
    await bench.draw(bench.job(id="two", n=2, prompt="two boats"))
    taken = time.perf_counter() - began
    report.add(f"{name}: first call of two images", taken, "s", over_two=taken / plain_s / 2)


async def _turns(bench: Bench, report: Report, name: str, alone: Pixels) -> None:
    """Two runs of different shapes at once: the first one's image must be the one that it is alone."""
    draft = bench.job(id="draft", height_px=bench.job().height_px // 2, seed=8)
    (image,), _ = await asyncio.gather(bench.draw(bench.job(id="long")), bench.draw(draft))
    report.add(f"{name}: bitwise beside another", bool((image == alone).all()), goal="True")
