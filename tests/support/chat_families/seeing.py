"""Families that see images."""

from typing import Any

import torch
import transformers as T

from tests.support.chat_families.family import SIZES, ChatFamily

QWEN_TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
EYES = {"hidden_size": 32, "intermediate_size": 48, "depth": 2, "num_heads": 2, "out_hidden_size": 64}
PATCHES = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
ROTARY = {"rope_type": "default", "rope_theta": 1e6, "mrope_interleaved": True}


def _text(tokenizer: T.PreTrainedTokenizerFast, **own: Any) -> dict[str, Any]:
    return {**SIZES, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, **own}


def qwen3_vl(tokenizer: T.PreTrainedTokenizerFast) -> T.PreTrainedModel:
    """Build Qwen3-VL."""
    tokens = {key: tokenizer.convert_tokens_to_ids(mark) for key, mark in QWEN_TOKENS.items()}
    text = _text(tokenizer, rope_parameters={**ROTARY, "mrope_section": [4, 2, 2]})
    vision = {**EYES, "num_position_embeddings": 256, "patch_size": 16, "deepstack_visual_indexes": [0]}
    return T.Qwen3VLForConditionalGeneration(
        T.Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **tokens)
    )


def qwen_processor(tokenizer: T.PreTrainedTokenizerFast) -> Any:
    """Return the processor of Qwen's vision models."""
    size = {"shortest_edge": 4096, "longest_edge": 65536}
    return T.Qwen3VLProcessor(
        image_processor=T.Qwen2VLImageProcessor(size=size, **PATCHES), tokenizer=tokenizer,
        video_processor=T.Qwen3VLVideoProcessor(**PATCHES), chat_template=tokenizer.chat_template,
    )  # fmt: skip


def gemma3_vl(tokenizer: T.PreTrainedTokenizerFast) -> T.PreTrainedModel:
    """Build Gemma 3 with its eyes."""
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    windows = {"num_hidden_layers": 6, "sliding_window": 64, "query_pre_attn_scalar": 16, "layer_types": kinds}
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
        "patch_size": 14,
    }  # fmt: skip
    marks = {"boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>"}
    model = T.Gemma3ForConditionalGeneration(
        T.Gemma3Config(
            text_config=_text(tokenizer, hidden_size=32, **windows), vision_config=vision, mm_tokens_per_image=4,
            image_token_index=tokenizer.convert_tokens_to_ids("<image_soft_token>"),
            **{key: tokenizer.convert_tokens_to_ids(mark) for key, mark in marks.items()},
        )
    )  # fmt: skip
    projector = model.model.multi_modal_projector
    torch.nn.init.normal_(projector.mm_input_projection_weight)  # zeros: nothing would be seen
    return model


def gemma_processor(tokenizer: T.PreTrainedTokenizerFast) -> Any:
    """Return the processor of Gemma 3."""
    images = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer._set_model_specific_special_tokens(images)
    return T.Gemma3Processor(
        image_processor=T.Gemma3ImageProcessor(size={"height": 56, "width": 56}), tokenizer=tokenizer,
        image_seq_length=4, chat_template=tokenizer.chat_template,
    )  # fmt: skip


qwen3_vl.__name__ = "Qwen3VLForConditionalGeneration"
gemma3_vl.__name__ = "Gemma3ForConditionalGeneration"

FAMILIES = [
    ChatFamily(
        "qwen3-vl", qwen3_vl, "qwen3-vl", "<|im_end|>", tokenizer="qwen3", writes="hermes", processor=qwen_processor
    ),
    ChatFamily(
        "gemma-3-vl", gemma3_vl, "tokenizer", "<end_of_turn>", "<bos>", tokenizer="gemma3", processor=gemma_processor
    ),
]
