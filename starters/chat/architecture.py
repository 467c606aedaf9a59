"""The network: a Qwen3 of some 0.8 M parameters, with the embedding as its output layer. Untrained."""

from pathlib import Path
from typing import Final

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from starters.chat.tokens import CONTEXT, END_OF_TEXT, TURN_END

SEED: Final = 20261121
HEAD: Final = 64  # wide enough for some slow rotations, which find words at any distance
ROTATION_BASE: Final = 1e5


def make_model(
    tokenizer: PreTrainedTokenizerFast, *, width: int = 128, heads: int = 3, layers: int = 3
) -> Qwen3ForCausalLM:
    """Return the network in float32, with random weights from SEED."""
    torch.manual_seed(SEED)
    ends = tokenizer.convert_tokens_to_ids([TURN_END, END_OF_TEXT])
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": ROTATION_BASE},
        tie_word_embeddings=True,
        eos_token_id=ends,
        pad_token_id=ends[1],
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[1])
    return model


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a folder that `AutoModelForCausalLM` and `AutoTokenizer` load, in float16."""
    half = Qwen3ForCausalLM(model.config).to(torch.float16)
    half.load_state_dict(model.state_dict())
    half.generation_config = model.generation_config
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
