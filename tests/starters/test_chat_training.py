"""The chat starter's recipe in miniature: it learns, a stopped run resumes exactly, and the result loads."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from starters.chat import train as training
from starters.chat.architecture import make_model

pytestmark = pytest.mark.nightly

Train = Callable[..., Path]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Train:
    for name, value in {
        "MERGES": 40, "SPACED": 20, "CORPUS": 20, "BATCH_TOKENS": 512, "BLOCK_STEPS": 2,
        "SAVE_EVERY": 2, "WARMUP_STEPS": 2, "make_model": partial(make_model, width=64, layers=2),
    }.items():  # fmt: skip
        monkeypatch.setattr(training, name, value)
    return training.train


def test_a_stopped_run_resumes_exactly(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uninterrupted = train(tmp_path / "uninterrupted", steps=5, device="cpu")
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
    weights, others = (load_file(folder / "model.safetensors") for folder in (uninterrupted, resumed))
    for name, tensor in weights.items():
        assert torch.equal(tensor, others[name]), name


def test_it_learns_and_what_it_writes_loads(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[float] = []
    learn = training._learn

    def recorded(*arguments: object) -> float:
        losses.append(learn(*arguments))  # type: ignore[arg-type]
        return losses[-1]

    monkeypatch.setattr(training, "_learn", recorded)
    folder = train(tmp_path, steps=12, device="cpu")
    assert losses[-1] < losses[0] - 1
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], return_tensors="pt")
    assert model.generate(**prompt, max_new_tokens=3, do_sample=False).shape[1] <= prompt["input_ids"].shape[1] + 3
    assert set(model.generation_config.eos_token_id) >= {tokenizer.eos_token_id}
