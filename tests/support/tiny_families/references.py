"""Families that read reference images: FLUX.2, Kontext, Fill and Qwen-Image-Edit."""

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers

from starters.architectures import klein_codec, qwen_config
from tests.support.tiny_families.flow_models import flux
from tests.support.tiny_families.parts import CHAT_TEMPLATE, flow, mistral3_config, qwen_tokenizer
from tests.support.tiny_families.qwen import qwen_codec, qwen_scheduler, qwen_transformer, qwen_vl, qwen_vl_processor

PIXTRAL_MARKS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")


def klein(*, distilled: bool = True, kind: type[Any] = diffusers.Flux2KleinPipeline) -> Any:
    torch.manual_seed(6)
    tokenizer = qwen_tokenizer()
    return kind(
        scheduler=flow(use_dynamic_shifting=True),
        vae=_flux2_codec(),
        text_encoder=transformers.Qwen3ForCausalLM(qwen_config(len(tokenizer), width=32, layers=28)),
        tokenizer=tokenizer,
        transformer=_flux2_transformer(text_width=96, guidance_embeds=False),
        is_distilled=distilled,
    )


def flux2() -> Any:
    """FLUX.2 [dev]: its tokenizer is a processor for text and images. It needs torchvision."""
    torch.manual_seed(5)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=qwen_tokenizer(PIXTRAL_MARKS).backend_tokenizer, pad_token="<|endoftext|>",
        eos_token="<|im_end|>", bos_token="<|im_start|>", model_max_length=131072,
    )  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": list(PIXTRAL_MARKS)})
    tokenizer.chat_template = CHAT_TEMPLATE
    processor = transformers.PixtralProcessor(
        image_processor=transformers.PixtralImageProcessor(patch_size=14, size={"longest_edge": 56}),
        tokenizer=tokenizer,
        patch_size=14,
        chat_template=CHAT_TEMPLATE,
    )
    config = mistral3_config(tokenizer, layers=31, image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"))
    return diffusers.Flux2Pipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=_flux2_codec(),
        text_encoder=transformers.Mistral3ForConditionalGeneration(config),
        tokenizer=processor,
        transformer=_flux2_transformer(text_width=48, guidance_embeds=True),
    )


def qwen_edit(kind: type[Any] = diffusers.QwenImageEditPipeline) -> Any:
    """It needs torchvision."""
    torch.manual_seed(8)
    tokenizer = qwen_tokenizer()
    return kind(
        transformer=qwen_transformer(),
        vae=qwen_codec(),
        scheduler=qwen_scheduler(),
        text_encoder=qwen_vl(tokenizer),
        tokenizer=tokenizer,
        processor=qwen_vl_processor(tokenizer),
    )


def qwen_layered() -> Any:
    """It takes an image apart into layers with alpha. It needs torchvision."""
    torch.manual_seed(53)
    tokenizer = qwen_tokenizer()
    return diffusers.QwenImageLayeredPipeline(
        transformer=qwen_transformer(use_additional_t_cond=True, use_layer3d_rope=True),
        vae=qwen_codec(channels=4),
        scheduler=qwen_scheduler(),
        text_encoder=qwen_vl(tokenizer),
        tokenizer=tokenizer,
        processor=qwen_vl_processor(tokenizer),
    )


def _flux2_codec() -> Any:
    return klein_codec(channels=(8, 8, 16, 16), latent_channels=16)


def _flux2_transformer(*, text_width: int, guidance_embeds: bool) -> Any:
    return diffusers.Flux2Transformer2DModel(
        patch_size=1, in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=text_width, axes_dims_rope=[4, 4, 4, 4],
        guidance_embeds=guidance_embeds,
    )  # fmt: skip


MAKERS: dict[str, Callable[[], Any]] = {
    "flux2": flux2,
    "klein": klein,
    "klein-base": lambda: klein(distilled=False),
    "kontext": lambda: flux(diffusers.FluxKontextPipeline),
    "flux-fill": lambda: flux(diffusers.FluxFillPipeline, in_channels=384),
    "qwen-edit": qwen_edit,
    "qwen-layered": qwen_layered,
    "qwen-edit-plus": lambda: qwen_edit(diffusers.QwenImageEditPlusPipeline),
}
