"""What tiny pipelines are made of: tokenizers, text encoders and codecs of a few thousand random weights."""

from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPTextModel,
    CLIPTextModelWithProjection,
    Gemma2Config,
    Gemma2Model,
    GemmaTokenizer,
    Mistral3Config,
    Qwen2Tokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

from starters.architectures import clip_config

PRINTABLE = [chr(code) for code in range(33, 127)]
SPACE = "\u2581"
QWEN_MARKS = (
    "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
    "<|video_pad|>",
)  # fmt: skip
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' or 'image' in c %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def stirred(module: Any) -> Any:
    """The module, with random numbers in the weights that training starts with as zeros: a prompt would change nothing
    before the first of its steps."""
    with torch.no_grad():
        for weight in module.parameters():
            if not weight.any():
                weight.normal_(std=0.1)
    return module


def t5_tokenizer(length: int = 512) -> T5Tokenizer:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), (SPACE, -1.0), *((letter, -2.0) for letter in PRINTABLE)]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=length)


def gemma_tokenizer() -> GemmaTokenizer:
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", SPACE, *PRINTABLE, "\n"]
    tokenizer = GemmaTokenizer(vocab={name: i for i, name in enumerate(names)}, merges=[])
    tokenizer.padding_side = "right"
    return tokenizer


def qwen_tokenizer(extra: tuple[str, ...] = ()) -> Qwen2Tokenizer:
    """Bytes and Qwen's marks, with a template that takes images."""
    names = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
    tokenizer = Qwen2Tokenizer({name: i for i, name in enumerate(names)}, [], model_max_length=131072)
    tokenizer.add_special_tokens({"additional_special_tokens": [*QWEN_MARKS, *extra]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def t5(width: int = 32) -> Any:
    config = T5Config(
        vocab_size=200, d_model=width, d_kv=8, d_ff=37, num_layers=1, num_heads=4, relative_attention_num_buckets=8,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    return T5EncoderModel(config).eval()


def clip(tokenizer: Any, *, projection: bool = False, length: int = 77) -> Any:
    kind = CLIPTextModelWithProjection if projection else CLIPTextModel
    return kind(clip_config(len(tokenizer), width=32, length=length))


def gemma(tokenizer: Any, layers: int = 1) -> Any:
    config = Gemma2Config(
        head_dim=8, hidden_size=16, intermediate_size=32, max_position_embeddings=8192, num_attention_heads=2,
        num_hidden_layers=layers, num_key_value_heads=2, vocab_size=len(tokenizer) + 8, attn_implementation="eager",
    )  # fmt: skip
    return Gemma2Model(config)


def mistral3_config(tokenizer: Any, *, layers: int, **options: Any) -> Mistral3Config:
    """The config of a Mistral 3 that reads texts and images."""
    return Mistral3Config(
        text_config={
            "model_type": "mistral", "vocab_size": len(tokenizer) + 8, "hidden_size": 16, "intermediate_size": 37,
            "max_position_embeddings": 2048, "num_attention_heads": 4, "num_hidden_layers": layers,
            "num_key_value_heads": 2, "head_dim": 4,
        },
        vision_config={
            "model_type": "pixtral", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4,
            "intermediate_size": 37, "image_size": 56, "patch_size": 14, "num_channels": 3, "head_dim": 4,
        },
        vision_feature_layer=-1,
        **options,
    )  # fmt: skip


def codec(latent_channels: int = 4, **options: Any) -> AutoencoderKL:
    """8 pixels to a latent."""
    return AutoencoderKL(
        block_out_channels=(8, 8, 8, 16),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1,
        latent_channels=latent_channels,
        norm_num_groups=4,
        mid_block_add_attention=False,
        sample_size=1024,
        **options,
    )


def flux_codec() -> AutoencoderKL:
    return codec(16, scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False)


def flow(**options: Any) -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(**options)
