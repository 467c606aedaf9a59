"""A chat checkpoint of a real architecture with random weights: that of SmolLM2-135M, 134 million of them.

A step of it is arithmetic, as of models that people run; a step of the starter is mostly Python. It never ends an
answer by itself, so every answer has as many tokens as were asked for.
"""

from pathlib import Path
from typing import Final

import gguf
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from starters.chat.tokens import make_tokenizer

CONTEXT: Final = 2**15
LAYERS: Final = 30
EARLY_S: Final = 0.02  # the deviation of weights, as in an untrained model


def make_random_chat(folder: Path, layers: int = LAYERS, *, four_bits: bool = False) -> Path:
    """Write the checkpoint, of fewer layers for a smaller one. A character of its prompts is a token. With `four_bits`
    the weights of its linear layers have the values that a file of Q4_0 has."""
    tokenizer = make_tokenizer([])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=CONTEXT, tie_word_embeddings=True, initializer_range=EARLY_S,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # tied to the output layer: whatever the state, no end comes
        model.model.embed_tokens.weight[tokenizer.eos_token_id] = 0.0
    if four_bits:
        for weight in (layer.weight for layer in model.model.layers.modules() if isinstance(layer, torch.nn.Linear)):
            blocks = gguf.quantize(weight.detach().numpy(), gguf.GGMLQuantizationType.Q4_0)
            weight.data = torch.tensor(gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q4_0))
    model.generation_config.eos_token_id = [tokenizer.eos_token_id]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
