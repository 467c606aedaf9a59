"""Training the chat starter, in miniature: it learns, and a run that was stopped goes on as if it had not been."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from starters.chat import train as training
from starters.chat.architecture import make_model
from starters.chat.measure import measure

Train = Callable[..., Path]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Train:
    for name, value in {
        "MERGES": 40, "SPACED": 20, "CORPUS": 20, "BATCH_TOKENS": 512, "BLOCK_STEPS": 2,
        "SAVE_EVERY": 2, "WARMUP_STEPS": 2, "make_model": partial(make_model, width=64, layers=2),
    }.items():  # fmt: skip
        monkeypatch.setattr(training, name, value)
    return training.train


def test_a_run_that_was_stopped_goes_on(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(tmp_path / "whole", steps=5, device="cpu")
    learn, count = training._learn, 0

    def stopped(*arguments: object) -> float:
        nonlocal count
        count += 1
        if count > 3:
            raise KeyboardInterrupt
        return learn(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "_learn", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", steps=5, device="cpu")
    monkeypatch.setattr(training, "_learn", learn)
    resumed = train(tmp_path / "stopped", steps=5, device="cpu")
    weights, others = (load_file(folder / "model.safetensors") for folder in (whole, resumed))
    for name, tensor in weights.items():
        assert torch.equal(tensor, others[name]), name


def test_a_checkpoint_that_knows_nothing_is_measured_as_such(train: Train, tmp_path: Path) -> None:
    measured = measure(train(tmp_path, steps=1, device="cpu"), count=3)
    assert measured.arguments == 0
    assert measured.ended < 1


def test_it_learns(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[float] = []
    learn = training._learn

    def noted(*arguments: object) -> float:
        losses.append(learn(*arguments))  # type: ignore[arg-type]
        return losses[-1]

    monkeypatch.setattr(training, "_learn", noted)
    train(tmp_path, steps=12, device="cpu")
    assert losses[-1] < losses[0] - 1
