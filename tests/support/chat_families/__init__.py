"""Tiny chat checkpoints of many families: the real class with a small config and random weights, the chat template that
its makers publish, and the family's own marks as tokens."""

from pathlib import Path

import torch
from transformers import GenerationConfig

from tests.support.chat_families import dense, experts, hybrid, seeing
from tests.support.chat_families.family import ChatFamily
from tests.support.chat_families.tokenizers import make_family_tokenizer

FAMILIES: dict[str, ChatFamily] = {
    family.name: family for module in (dense, experts, hybrid, seeing) for family in module.FAMILIES
}


def make_chat_family(name: str, folder: Path) -> Path:
    """Write the checkpoint. Needs the packages that carry the templates."""
    family = FAMILIES[name]
    tokenizer = make_family_tokenizer(family)
    torch.manual_seed(7)
    model = family.build(tokenizer)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(4.0)  # so that the likeliest token is ahead of the second one
    model.to(torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if family.processor is not None:
        family.processor(tokenizer).save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id).save_pretrained(folder)
    return folder
