"""Images and chats that wait in the middle, so that a test does not race against their end."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pipelines.images.denoising.step_observer import Pixels, PreviewFn
from pipelines.images.drawing.pipeline import ImagePipeline

LIMIT_S = 120  # only ends a test that has failed


def hold_steps(monkeypatch: pytest.MonkeyPatch, may_go_on: Callable[[str, int], object]) -> None:
    """After each step, from the first on, a run keeps the device until `may_go_on(job id, step)` is true."""

    class Held(ImagePipeline):
        def draw(self) -> Callable[[], Pixels]:
            steps = itertools.count(1)

            def on_step(preview: PreviewFn) -> None:
                self.on_step(preview)
                step = next(steps)
                _wait_until(lambda: may_go_on(self.job.id, step))

            return ImagePipeline.draw(replace(self, on_step=on_step))

    monkeypatch.setattr("pipelines.images.drawing.run.ImagePipeline", Held)


def hold_tokens(monkeypatch: pytest.MonkeyPatch, module: str, may_go_on: Callable[[int], object]) -> None:
    """After each step of sampling, from the first on, chats of a module of pipelines.chat wait until `may_go_on(step)`
    is true."""
    from pipelines.chat.steps.decode_step import sample_step

    steps = itertools.count(1)

    def held(*arguments: Any) -> None:
        sample_step(*arguments)
        step = next(steps)
        _wait_until(lambda: may_go_on(step))

    monkeypatch.setattr(f"pipelines.chat.steps.{module}.sample_step", held)


def _wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until, f"held for {LIMIT_S} s"
        time.sleep(0.005)
