"""GLM-Image: an autoregressive model draws tokens, by torch's global generator, and a transformer the image."""

from typing import Any

import diffusers
import torch
import transformers

from tests.support.tiny_families.parts import codec, flow, qwen_tokenizer, t5, t5_tokenizer

VISION_VOCABULARY = 128


def glm_image() -> Any:
    torch.manual_seed(18)
    config = transformers.GlmImageConfig(
        text_config={
            "vocab_size": 168064, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 8192,
            "vision_vocab_size": VISION_VOCABULARY,
            "rope_parameters": {"mrope_section": (4, 2, 2), "rope_type": "default", "rope_theta": 10000.0},
        },
        vision_config={
            "depth": 1, "hidden_size": 32, "num_heads": 2, "image_size": 64, "patch_size": 16, "intermediate_size": 32,
        },
        vq_config={"embed_dim": 32, "num_embeddings": VISION_VOCABULARY, "latent_channels": 32},
    )  # fmt: skip
    special = ("<|image|>", "<|begin_of_image|>", "<|end_of_image|>", "<|dit_token_16384|>")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=qwen_tokenizer(special).backend_tokenizer, pad_token="<|endoftext|>",
        bos_token="<|im_start|>", model_max_length=8192,
        extra_special_tokens={
            "grid_bos_token": "<|im_start|>", "grid_eos_token": "<|im_end|>", "image_token": "<|image|>",
        },
    )  # fmt: skip
    tokenizer.chat_template = (qwen_tokenizer().chat_template or "").replace("<|image_pad|>", "<|image|>")
    return diffusers.GlmImagePipeline(
        tokenizer=t5_tokenizer(2048),
        processor=transformers.GlmImageProcessor(
            image_processor=transformers.GlmImageImageProcessor(patch_size=16, temporal_patch_size=1, merge_size=1),
            tokenizer=tokenizer,
            chat_template=tokenizer.chat_template,
        ),
        text_encoder=t5(32),
        vision_language_encoder=transformers.GlmImageForConditionalGeneration(config),
        vae=codec(16, latents_mean=[0.0] * 16, latents_std=[1.0] * 16),
        transformer=diffusers.GlmImageTransformer2DModel(
            patch_size=2, in_channels=16, out_channels=16, num_layers=2, attention_head_dim=8, num_attention_heads=2,
            text_embed_dim=32, time_embed_dim=16, condition_dim=8,
            prior_vq_quantizer_codebook_size=VISION_VOCABULARY,
        ),
        scheduler=flow(),
    )  # fmt: skip
