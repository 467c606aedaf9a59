"""Darkroom's engine with a pipeline from memory, in place of one that was read from files."""

import io
import itertools
import json
import math
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.gpu.machine import Machine
from pipelines.device.memory import Budgets
from pipelines.images.engine import ImageEngine
from pipelines.images.loading import load as loading
from pipelines.images.parallel.group import Group
from pipelines.protocol.images import (
    CheckpointSpec,
    Encoding,
    Event,
    Failed,
    Finished,
    ImageJob,
    Runtime,
    SamplingDefaults,
)

PROMPT = "a red boat at sunset"
SEED = 5
GUIDANCE = 3.5
WEIGHTS_SHARE = 0.9  # of the device's memory: two FLUX.1 have room in 80 GB (part `loading`)
Pixels = NDArray[np.int64]  # (height, width, 3)


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine and the checkpoint that it serves. Closed with the folder that names the checkpoint."""

    machine: Machine
    engine: ImageEngine
    spec: CheckpointSpec
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of new prompts

    def job(self, **fields: object) -> ImageJob:
        """One image of 1024 x 1024 in 28 steps, but for what is given; `steps` too."""
        side, steps = (64, 3) if self.machine.tiny else (1024, 28)
        sampling = self.spec.sampling.resolve(int(str(fields.pop("steps", steps))))
        plain = ImageJob(
            id="one", checkpoint=self.spec, prompt=PROMPT, sampling=sampling, width_px=side, height_px=side, n=1,
            seed=SEED, references=(), mask=None, encoding=Encoding(), metadata={}, time_limit_s=900,
        )  # fmt: skip
        return replace(plain, **fields)  # type: ignore[arg-type]

    async def draw(self, job: ImageJob, on_event: Callable[[Event], None] = lambda _: None) -> list[Pixels]:
        """Its images. Raises RuntimeError if it fails."""
        last: Event | None = None
        async for event in self.engine.submit(job):
            on_event(event)
            last = event
        if not isinstance(last, Finished):
            lines = last.detail.strip().splitlines() if isinstance(last, Failed) else []
            raise RuntimeError(lines[-1] if lines else str(last))  # noqa: TRY004 (no caller passed a wrong type)
        return [np.asarray(Image.open(io.BytesIO(file.data))).astype(np.int64) for file in last.images]

    async def timed(self, job: ImageJob, rounds: int = 3) -> float:
        """The median seconds from submitting a job to its files, after a round that does not count. Each has a prompt
        that is new, so that all of them encode it."""
        taken = []
        for _ in range(1 + (1 if self.machine.tiny else rounds)):
            new = replace(job, prompt=f"{job.prompt}, {next(self.numbers)} of them")
            began = time.perf_counter()
            await self.draw(new)
            taken.append(time.perf_counter() - began)
        return statistics.median(taken[1:])


@contextmanager
def serving(machine: Machine, pipeline: Any, group: Group | None = None, **runtime: object) -> Iterator[Bench]:
    """An engine that finds `pipeline` wherever it would read this checkpoint's files; its parts stay as they are on the
    device. `group` has further devices. Call it in a running event loop.

    Its budget is a share of the whole device: by what is free, the engine would take this pipeline for a stranger's.
    Nothing keeps the pipeline once the caller's function has returned, and `Machine.free` then frees it.
    """
    budgets = Budgets.of(machine.device, device_gib=WEIGHTS_SHARE * machine.memory_gib)
    read = loading._read
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_headers(pipeline, folder)

        def from_memory(spec: CheckpointSpec, *others: Any) -> Any:
            return (pipeline, ()) if spec.path == folder else read(spec, *others)

        loading._read = from_memory
        try:
            engine = ImageEngine(machine.device, budgets, group=group)
            try:
                yield Bench(machine, engine, spec_of(machine, folder, **runtime))
            finally:
                engine.close()
        finally:
            loading._read = read


def spec_of(machine: Machine, folder: Path, **runtime: object) -> CheckpointSpec:
    side = 64 if machine.tiny else 1024
    return CheckpointSpec(
        name="random", path=folder, config=None, family="alpha", conditioning="img2img", max_references=1,
        native_area_px=side**2, max_area_px=2 * side**2, sampling=SamplingDefaults(guidance=GUIDANCE),
        runtime=Runtime(**runtime),  # type: ignore[arg-type]
    )  # fmt: skip


def difference(one: Pixels, other: Pixels) -> dict[str, float]:
    """The largest difference in levels, the share of values that differ, and PSNR in dB (infinite if none does)."""
    off = np.abs(one - other)
    error = float(np.sqrt((off.astype(float) ** 2).mean()))
    return {
        "off_max": float(off.max()), "off_share": float((off > 0).mean()),
        "psnr_db": round(20 * math.log10(255 / error), 1) if error else 999.0,
    }  # fmt: skip


def _write_headers(pipeline: Any, folder: Path) -> None:
    """A folder as the engine checks it, whose safetensors files have real headers and a hole instead of weights: the
    engine takes sizes from them.
    """
    parts = {name: part for name, part in pipeline.components.items() if part is not None}
    names = {name: [type(part).__module__.split(".")[0], type(part).__name__] for name, part in parts.items()}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": type(pipeline).__name__, **names}))
    for name, part in parts.items():
        if not isinstance(part, torch.nn.Module):
            part.save_pretrained(folder / name)
            continue
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
        offset, header = 0, {}
        for tensor_name, weight in part.state_dict().items():
            end = offset + weight.numel() * 2
            header[tensor_name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(header).encode()
        stem = "model" if names[name][0] == "transformers" else "diffusion_pytorch_model"
        with (folder / name / f"{stem}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + offset)
