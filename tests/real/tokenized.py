"""An untrained model of a few numbers around a published tokenizer."""

from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from tests.support.chat_templates import FAMILIES as TEMPLATES

FAMILIES = ("qwen3", "gptoss", "gemma3", "llama3")


def make_tokenized(folder: Path) -> Path:
    """Write the model beside the tokenizer's files."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:  # gpt-oss has it in a file that the package leaves out
        tokenizer.chat_template = TEMPLATES["gpt-oss"]
        tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=1024, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder
