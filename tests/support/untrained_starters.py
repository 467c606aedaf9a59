"""The three starters with random weights: real pipelines whose images and words are noise."""

from pathlib import Path

import torch

from starters.architectures import alpha, beta
from starters.chat.architecture import make_model, save
from starters.chat.tokens import make_tokenizer


def make_untrained_starters(weights: Path) -> Path:
    """Write them under the names that the shipped catalog uses."""
    for name, make in {"starter-alpha": alpha, "starter-beta": beta}.items():
        make().to(dtype=torch.float16).save_pretrained(weights / name)
    tokenizer = make_tokenizer(())
    save(make_model(tokenizer), tokenizer, weights / "starter-chat")
    return weights
