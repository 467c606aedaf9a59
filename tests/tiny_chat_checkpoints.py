"""Chat checkpoints of some 0.1 M parameters, made on the spot: untrained, so they say noise, but always the same."""

from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from pipelines.starter.chat.tokens import make_tokenizer

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def make_qwen(folder: Path) -> Path:
    """Every layer with all of the context."""
    tokenizer = make_tokenizer([])
    config = Qwen3Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, head_dim=16, max_position_embeddings=512, **SIZES
    )
    return save(folder, Qwen3ForCausalLM, config, tokenizer)


def make_llama(folder: Path) -> Path:
    tokenizer = make_tokenizer([])
    config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=4, max_position_embeddings=512, **SIZES)
    return save(folder, LlamaForCausalLM, config, tokenizer)


def make_llama3(folder: Path) -> Path:
    """With a template that knows no marks for calls, so that a call is bare JSON."""
    make_llama(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.response_template = None
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if tools %}{{ tools | tojson }}\n{% endif %}<|im_start|>assistant\n"
    )
    tokenizer.save_pretrained(folder)
    return folder


def make_mistral(folder: Path) -> Path:
    """Every layer sees the last 24 tokens alone."""
    tokenizer = make_tokenizer([])
    config = MistralConfig(
        vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=512, sliding_window=24, **SIZES
    )
    return save(folder, MistralForCausalLM, config, tokenizer)


def save(folder: Path, kind: type[PreTrainedModel], config: object, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Weights large enough that an untrained model is never in two minds."""
    torch.manual_seed(7)
    model = kind(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.25)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
