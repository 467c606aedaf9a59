"""The training loop. A run that is interrupted resumes where it stopped.

The batch of step s depends on s alone, and the saved state holds everything else, so the steps are the same however
often a run was interrupted. The result is a running average (EMA) of the weights.
"""

import copy
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.optim import Optimizer

from starters.muon import Muon

SAVE_EVERY_S: Final = 90.0
WARMUP_STEPS: Final = 50
EMA_DECAY: Final = 0.998  # lower during the first steps, until there are enough to average
MAX_GRAD_NORM: Final = 1.0
WEIGHT_DECAY: Final = 0.01
INNER_WEIGHTS: Final = re.compile(r"(blocks|mid_block|layers)\.")  # in the names of weights


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many steps, and the learning rate, which falls to a fiftieth over the last `cooldown` of them (a share)."""

    steps: int
    rate: float
    cooldown: float = 0.4

    def rate_at(self, step: int, last_step: int | None = None) -> float:
        """The learning rate of a step, if the run must end at step `last_step`."""
        steps = self.steps if last_step is None else min(self.steps, last_step)
        left = (steps - step) / max(1.0, self.cooldown * steps)
        return self.rate * min(1.0, (step + 1) / WARMUP_STEPS, max(0.02, left))


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mixed_precision(where: torch.device) -> torch.autocast:
    """bfloat16 where it is fast: on GPUs and on processors that multiply it. On others it is slower than float32."""
    return torch.autocast(where.type, dtype=torch.bfloat16, enabled=where.type == "cuda" or cpu_has_bfloat16())


def cpu_has_bfloat16() -> bool:
    """Whether the processor does; torch before 2.11 cannot tell."""
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def channels_last(model: nn.Module) -> nn.Module:
    """The same model, its convolutions laid out as a CPU and a GPU like best."""
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


class Run:
    """The training of one model, with its state in one file."""

    def __init__(self, file: Path, model: nn.Module, schedule: Schedule) -> None:
        self.file, self.model, self.schedule, self.step = file, model, schedule, 0
        self.seconds = 0.0  # spent on the steps so far
        self.last_step: int | None = None  # an estimate, when the time is limited
        self.average = copy.deepcopy(model).eval().requires_grad_(False)
        self.optimizers = _optimizers(model, schedule.rate)
        if file.exists():
            self._load()

    @property
    def finished(self) -> bool:
        return self.step >= self.schedule.steps

    def train(self, loss_of: Callable[[int], Tensor], until: float = float("inf")) -> None:
        """Run the remaining steps, or those that fit before `until` (seconds, monotonic clock)."""
        with _graceful_stop() as stop, _progress(self.file.stem, self.schedule.steps) as report:
            saved = started = time.monotonic()
            first = self.step
            try:
                while not self.finished and not stop() and time.monotonic() < until:
                    if self.step > first + WARMUP_STEPS // 2 and until < float("inf"):
                        pace = (time.monotonic() - started) / (self.step - first)
                        self.last_step = self.step + int((until - time.monotonic()) / pace)
                    began = time.monotonic()
                    report(self.step, self._train_step(loss_of))
                    self.seconds += time.monotonic() - began
                    if time.monotonic() - saved > SAVE_EVERY_S:
                        self.save()
                        saved = time.monotonic()
            finally:
                if self.step > first:
                    self.save()
        if stop():
            sys.exit(f"stopped at step {self.step} of {self.schedule.steps}; the same command resumes")

    def save(self) -> None:
        """Write the state file, atomically."""
        part = self.file.with_suffix(f".{os.getpid()}")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        parts: dict[str, Any] = {"model": self.model, "average": self.average, **self.optimizers}
        torch.save(
            {"step": self.step, "seconds": self.seconds, **{name: part.state_dict() for name, part in parts.items()}},
            part,
        )
        part.rename(self.file)

    def _load(self) -> None:
        state = torch.load(self.file, map_location=next(self.model.parameters()).device, weights_only=True)
        if not self.optimizers.keys() <= state.keys() or _shapes(state["model"]) != _shapes(self.model.state_dict()):
            raise ValueError(f"{self.file} was written by another version: remove it")
        self.step, self.seconds = state["step"], state["seconds"]
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state[name])

    def _train_step(self, loss_of: Callable[[int], Tensor]) -> float:
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = self.schedule.rate_at(self.step, self.last_step)
        self.model.train()
        torch.manual_seed(self.step)
        loss = loss_of(self.step)
        self.model.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        for optimizer in self.optimizers.values():
            optimizer.step()
        self._update_ema()
        self.step += 1
        return loss.item()

    @torch.no_grad()
    def _update_ema(self) -> None:
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        for mean, value in zip(self.average.state_dict().values(), self.model.state_dict().values(), strict=True):
            if mean.is_floating_point():
                mean.lerp_(value, 1 - decay)
            else:
                mean.copy_(value)


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}


def _optimizers(model: nn.Module, rate: float) -> dict[str, Optimizer]:
    """Muon for the matrices of inner layers; AdamW for embeddings, input and output layers, biases and norms."""
    learned = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    inner = [weight for name, weight in learned if weight.ndim > 1 and INNER_WEIGHTS.search(name)]
    known = {id(weight) for weight in inner}
    outer = [weight for _, weight in learned if id(weight) not in known]
    adam = torch.optim.AdamW(outer, lr=rate, betas=(0.9, 0.99), weight_decay=WEIGHT_DECAY)
    return {"adam": adam, "muon": Muon(inner, rate, weight_decay=WEIGHT_DECAY)} if inner else {"adam": adam}


@contextmanager
def _graceful_stop() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end the run after the current step."""
    stop_requested = False

    def request_stop(_: int, __: FrameType | None) -> None:
        nonlocal stop_requested
        stop_requested = True

    before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: stop_requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(name: str, steps: int) -> Iterator[Callable[[int, float], None]]:
    """A progress bar on a terminal, a line every twenty seconds elsewhere. Both show a running mean of the loss."""
    console = Console(stderr=True)
    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    mean, logged_at = 0.0, time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=steps)

        def report(step: int, loss: float) -> None:
            nonlocal mean, logged_at
            mean = loss if mean == 0 else mean + 0.03 * (loss - mean)
            bar.update(task, completed=step + 1, description=f"{name}  loss {mean:.4f}")
            if not console.is_terminal and time.monotonic() - logged_at > 20:
                print(f"{name} {step + 1}/{steps} loss {mean:.4f}", file=sys.stderr, flush=True)
                logged_at = time.monotonic()

        yield report
