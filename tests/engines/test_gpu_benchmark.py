"""`make gpu` runs here too, on small networks: every part measures something, and what must be equal is."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.gpu.__main__ import PARTS, main, run_apart
from benchmarks.gpu.engine import PROMPT, serving
from benchmarks.gpu.images import bare_seconds, draw_bare
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.networks import flux_pipeline
from tests.support.harness import until
from tests.support.processes import command_of, group

pytestmark = pytest.mark.nightly

TINY = Machine(torch.device("cpu"), tiny=True)


@pytest.fixture
def left_over(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many denoisers are still in memory when the next one is made."""
    counts: list[int] = []
    made: list[weakref.ref[Any]] = []
    make = Machine.make

    def counted(machine: Machine, build: Callable[[], Any]) -> Any:
        there = sum(ref() is not None for ref in made)
        module = make(machine, build)
        if type(module).__name__.endswith(("Transformer2DModel", "UNet2DConditionModel")):
            counts.append(there)
            made.append(weakref.ref(module))
        return module

    monkeypatch.setattr(Machine, "make", counted)
    return counts


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_gpu_benchmark_runs_on_a_cpu(
    part: str, left_over: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part, "--tiny"]) == 0
    assert not any(left_over), "of real sizes, a second one may have no room"
    printed = capsys.readouterr()
    figures = [json.loads(line) for line in printed.out.splitlines()]
    assert len(figures) > 2
    assert {figure["part"] for figure in figures} == {part}
    assert all(figure["value"] is True for figure in figures if figure.get("goal") == "True")
    assert all(str(figure["what"]) in printed.err for figure in figures), "the table lacks some"


async def test_darkroom_and_the_bare_pipeline_do_the_same_work() -> None:
    """They encode as many prompts, and end with the same file."""
    pipeline = flux_pipeline(TINY)
    encoded: list[str] = []
    (file,) = draw_bare(TINY, pipeline, [PROMPT])
    pipeline.text_encoder_2.register_forward_pre_hook(lambda *_: encoded.append("bare"))
    bare_seconds(TINY, pipeline)
    bare = len(encoded)
    with serving(TINY, pipeline) as bench:
        for steps in (3, 2):
            encoded.clear()
            await bench.timed(bench.job(steps=steps))
            assert len(encoded) == bare
        (image,) = await bench.draw(bench.job())
    assert np.array_equal(image, np.asarray(Image.open(io.BytesIO(file))))


async def test_a_pipeline_that_is_on_the_device_already_fits_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is free the device would be full: of this pipeline."""
    monkeypatch.setattr("pipelines.device.memory.weights_budget", lambda *_: 0.0)
    with serving(TINY, flux_pipeline(TINY)) as bench:
        assert len(await bench.draw(bench.job())) == 1


def test_missing_dependencies_are_named_in_one_line() -> None:
    code = "import runpy, sys; sys.modules['diffusers'] = None; runpy.run_module('benchmarks.gpu', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "The GPU benchmark needs diffusers, which is not installed: pip install -e .\n"


def kill_steps() -> None:
    """As the system does without memory."""

    def of_steps() -> list[int]:
        return [pid for pid in group(os.getpid()) if command_of(pid).endswith(b"benchmarks.gpu\0steps\0")]

    until(lambda: bool(of_steps()))
    os.kill(of_steps()[0], signal.SIGKILL)


def test_a_part_that_fails_or_hangs_does_not_end_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    """A process each: one hangs in starting torch, one is no part, and one is killed."""
    assert run_apart(["ceilings"], limit_s=0.1) == 1
    killer = threading.Thread(target=kill_steps, daemon=True)
    killer.start()
    assert run_apart(["steps", "unknown"], limit_s=300) == 2
    killer.join()
    figures = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(figure["part"], figure["what"], figure["value"]) for figure in figures] == [
        ("ceilings", "failed", "it was killed after 0.1 s"),
        ("steps", "failed", "it ended with -9"),
        ("unknown", "failed", "it ended with 2"),
    ]
