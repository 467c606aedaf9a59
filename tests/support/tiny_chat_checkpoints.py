"""Untrained chat checkpoints of some 0.1 M parameters: what they write is random, but always the same."""

from pathlib import Path

import torch
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from starters.chat.tokens import make_tokenizer

ENDLESS_CONTEXT = 2**15
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def make_qwen(folder: Path, context: int = 512) -> Path:
    """Full attention in every layer."""
    tokenizer = make_tokenizer([])
    config = Qwen3Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, head_dim=16, max_position_embeddings=context, **SIZES
    )
    return save(folder, Qwen3ForCausalLM, config, tokenizer)


def make_endless(folder: Path) -> Path:
    """Its context takes minutes to fill: without an end token, an answer goes on until a test ends it."""
    return make_qwen(folder, ENDLESS_CONTEXT)


def make_llama(folder: Path) -> Path:
    tokenizer = make_tokenizer([])
    config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=4, max_position_embeddings=512, **SIZES)
    return save(folder, LlamaForCausalLM, config, tokenizer)


def make_llama3(folder: Path) -> Path:
    """With a chat template that has no delimiters for calls, so that a call is bare JSON."""
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
    """A sliding window of 24 tokens in every layer."""
    tokenizer = make_tokenizer([])
    config = MistralConfig(
        vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=512, sliding_window=24, **SIZES
    )
    return save(folder, MistralForCausalLM, config, tokenizer)


def make_llava(folder: Path) -> Path:
    """A vision model: 32 x 32 pixels in four patches."""
    tokenizer = make_tokenizer([])
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=16
    )
    text = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=4, max_position_embeddings=512, **SIZES)
    image = tokenizer.convert_tokens_to_ids("<image>")
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=image, image_seq_length=4)
    save(folder, LlavaForConditionalGeneration, config, tokenizer)
    square = {"height": 32, "width": 32}
    LlavaProcessor(
        image_processor=CLIPImageProcessor(size=square, crop_size=square),
        tokenizer=tokenizer,
        patch_size=16,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=(
            "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
            "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n"
            "{% endfor %}<|im_start|>assistant\n"
        ),
    ).save_pretrained(folder)
    return folder


def save(folder: Path, model_class: type[PreTrainedModel], config: object, tokenizer: PreTrainedTokenizerFast) -> Path:
    """With seeded weights, so large that the likeliest token is far ahead of the second one."""
    torch.manual_seed(7)
    model = model_class(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.25)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
