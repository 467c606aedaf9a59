"""Eight families as they are served by default, against the bare pipeline and with each thing left out that a GPU does
without an option. What `make gpu` answers first."""

import contextlib
import importlib
import inspect
import itertools
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

import torch

from benchmarks.bare import timed
from benchmarks.gpu.engine import PROMPT, SEED, serving
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.report import Report
from benchmarks.real_memory.networks import CHECKPOINTS
from pipelines.device.attention import attention_notes, choose_attention
from pipelines.device.attention_kernels import plain_torch
from pipelines.device.failures import first_line
from pipelines.device.graph_capture import CAPTURES
from pipelines.families.registry import family_of
from pipelines.protocol.finished_image import encode_file
from pipelines.protocol.images import Encoding
from tests.support.tiny_families import FAMILIES

CALLS: Final = 20  # by default; what is left out is seen in fewer
FEW_CALLS: Final = 5
FIRST_CALLS: Final = 3  # which don't count: kernels are tried, and passes captured
MOST_STEPS: Final = 8  # of a call: all families in five minutes
TEXT_WIDTHS: Final = (
    "joint_attention_dim", "pooled_projection_dim", "cross_attention_dim", "cap_feat_dim",
    "projection_class_embeddings_input_dim", "addition_time_embed_dim",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawn:
    """A family: its name, its tiny checkpoint, its network in real sizes (by benchmarks.real_memory, or as the library
    makes it by default), and the guidance and the steps of a call."""

    name: str
    tiny: str
    guidance: float
    steps: int

    def pipeline(self, machine: Machine) -> Any:
        """Make its pipeline: the denoiser and the codec in real sizes, and a small encoder, which takes next to nothing
        of a call. With `tiny` all is small."""
        pipeline = FAMILIES[self.tiny]()
        parts = dict(pipeline.components)
        if not machine.tiny:
            name = "transformer" if "transformer" in parts else "unet"
            parts[name] = machine.make(lambda: self._denoiser(parts[name]))
            if (codec := next((each.codec for each in CHECKPOINTS if each.name == self.name), None)) is not None:
                parts["vae"] = machine.make(codec)
        for part in parts.values():
            if isinstance(part, torch.nn.Module):
                part.to(machine.device, machine.dtype).eval().requires_grad_(requires_grad=False)
        accepted = inspect.signature(type(pipeline).__init__).parameters
        options = {key: value for key, value in pipeline.config.items() if key in accepted and key not in parts}
        made = type(pipeline)(**parts, **options)
        made.set_progress_bar_config(disable=True)
        return made

    def _denoiser(self, tiny: Any) -> Any:
        kind = type(tiny)
        real = next((each.denoiser for each in CHECKPOINTS if each.name == self.name), kind)
        with torch.device("meta"):
            config = dict(real().config)
        widths = {name: tiny.config[name] for name in TEXT_WIDTHS if name in tiny.config}
        if "guidance_embeds" in tiny.config:
            widths["guidance_embeds"] = tiny.config["guidance_embeds"]
        return kind.from_config({**config, **widths})


DRAWN: Final = (
    Drawn("FLUX.1", "flux", 3.5, 28),
    Drawn("Qwen-Image", "qwen-image", 1.0, 50),
    Drawn("SDXL", "sdxl", 5.0, 30),
    Drawn("Z-Image", "z-image", 0.0, 8),
    Drawn("FLUX.2 klein 4B", "klein", 1.0, 4),
    Drawn("SD 3.5 large", "sd3", 3.5, 28),
    Drawn("Chroma", "chroma", 1.0, 40),
    Drawn("FLUX.2 [dev]", "klein", 1.0, 28),
)


async def default(machine: Machine, report: Report) -> None:
    """The median and the 99th percentile of twenty calls, from a new prompt to the file."""
    for drawn in DRAWN:
        if not report.has_time:
            report.add(drawn.name, "none", why="the part's ten minutes are over")
            continue
        try:
            await _family(machine, report, drawn)
        except Exception as error:  # the other families are still worth their time
            traceback.print_exc()
            report.add(drawn.name, "failed", why=f"{type(error).__name__}: {first_line(error)}"[:200])
        machine.free()


async def _family(machine: Machine, report: Report, drawn: Drawn) -> None:
    pipeline = drawn.pipeline(machine)
    calls, few = (4, 2) if machine.tiny else (CALLS, FEW_CALLS)
    steps = min(drawn.steps, 3 if machine.tiny else MOST_STEPS)
    bare = _bare_seconds(machine, pipeline, drawn, steps, few)
    report.add(f"{drawn.name}: bare pipeline, p50", statistics.median(bare), "s", steps=steps)
    with chosen_attention(machine):
        by_default = await _served_seconds(machine, pipeline, drawn, steps, calls)
        p50, p99 = (percentile(by_default, percent) for percent in (50, 99))
        notes = {"attention": "; ".join(attention_notes())} if attention_notes() else {}
        report.add(f"{drawn.name}: by default, p50", p50, "s", over_bare=p50 / statistics.median(bare), **notes)
        report.add(f"{drawn.name}: by default, p99", p99, "s", calls=calls, over_p50=p99 / p50)
    for name, without in LEFT_OUT.items():
        attention = nullcontext() if name == "attention" else chosen_attention(machine)
        left_out = without()
        if left_out is None:
            report.add(f"{drawn.name}: without {name}", "none", why="there is none here")
            continue
        with attention, left_out:
            seconds = statistics.median(await _served_seconds(machine, pipeline, drawn, steps, few))
        report.add(f"{drawn.name}: without {name}, p50", seconds, "s", gain=seconds / p50)


async def _served_seconds(machine: Machine, pipeline: Any, drawn: Drawn, steps: int, calls: int) -> list[float]:
    """Return the seconds of calls, one after another, in an engine of their own: graphs and choices begin anew."""
    numbers = itertools.count()
    with serving(machine, pipeline) as bench:
        spec = replace(bench.spec, sampling=replace(bench.spec.sampling, guidance=drawn.guidance))
        plain = bench.job(checkpoint=spec, sampling=spec.sampling.resolve(steps))

        async def call() -> float:
            new = replace(plain, prompt=f"{PROMPT}, {next(numbers)} of them")
            began = time.perf_counter()
            await bench.draw(new)
            return time.perf_counter() - began

        for _ in range(1 if machine.tiny else FIRST_CALLS):
            await call()
        seconds = [await call() for _ in range(calls)]
        (await bench.engine.load(bench.spec)).forget(in_use=False)  # else its graphs stay with the pipeline
        return seconds


def _bare_seconds(machine: Machine, pipeline: Any, drawn: Drawn, steps: int, calls: int) -> list[float]:
    """Return the seconds of the library's own calls, with files as Darkroom makes them."""
    side, numbers = 64 if machine.tiny else 1024, itertools.count()
    call, family = inspect.signature(type(pipeline).__call__).parameters, family_of(type(pipeline).__name__)
    given = family.guidance(drawn.guidance, "", steps) | {
        "max_sequence_length": family.max_sequence_length(call, pipeline)
    }
    options = {name: value for name, value in given.items() if name in call and value is not None}

    def draw() -> bytes:
        with torch.inference_mode():
            image = pipeline(
                prompt=f"{PROMPT}, {next(numbers)} of them", width=side, height=side, num_inference_steps=steps,
                generator=torch.Generator().manual_seed(SEED), **options,
            ).images[0]  # fmt: skip
        return encode_file(image, Encoding(), {"seed": SEED})

    draw()
    return [timed(draw) for _ in range(calls)]


@contextmanager
def chosen_attention(machine: Machine) -> Iterator[None]:
    """Let attention be chosen by trying, as a worker does; afterwards it is torch's again."""
    choose_attention(machine.device, None)
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = plain_torch


def without_fusion() -> AbstractContextManager[object] | None:
    """Leave out the fusion of small operations, where there is one."""
    with contextlib.suppress(ModuleNotFoundError):
        return patch.dict(importlib.import_module("pipelines.device.fusion.fuser").FUSERS, clear=True)
    return None


LEFT_OUT: Final[dict[str, Callable[[], AbstractContextManager[object] | None]]] = {
    "attention": nullcontext,
    "graphs": lambda: patch.dict(CAPTURES, clear=True),
    "fusion": without_fusion,
}


def percentile(seconds: Sequence[float], percent: int) -> float:
    """Return it by interpolation between the nearest values."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]
