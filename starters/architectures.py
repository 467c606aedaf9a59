"""The image starters' networks, untrained. A checkpoint is what these classes save.

starter-alpha is a UNet of the Stable Diffusion family over a small autoencoder with 16-pixel latents; starter-beta is a
few-step transformer of the FLUX.2 klein family, which takes reference images natively. Both are small enough for a CPU.
"""

from typing import Any, Final

import torch
from diffusers import (
    AutoencoderKLFlux2,
    AutoencoderTiny,
    DDIMScheduler,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
)

from starters.tokens import LENGTH, clip_tokenizer, qwen_tokenizer

SEED: Final = 20261121
LATENT_SCALE: Final = 3.2  # of alpha's averages, which makes their variance about 1
BETA_SHIFT: Final = 2.0  # of its noise levels: layouts are visible through much noise, since neighbouring pixels agree
READ_LAYERS: Final = 28  # the klein pipeline reads the text encoder's layers 9, 18 and 27
TRAINED_LAYERS: Final = 4  # the first of these: enough for captions of scenes


def alpha() -> DiffusionPipeline:
    """starter-alpha, untrained."""
    torch.manual_seed(SEED)
    tokenizer = clip_tokenizer(length=LENGTH)
    return stable_diffusion(alpha_codec(), alpha_unet(), tokenizer, alpha_text(len(tokenizer)))


def beta() -> DiffusionPipeline:
    """starter-beta, untrained."""
    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(length=LENGTH)
    return klein(beta_codec(), beta_transformer(), tokenizer, qwen_text(beta_text_trunk(len(tokenizer))))


def alpha_codec() -> AutoencoderTiny:
    """16 pixels to a latent of 4 channels, the only number that Stable Diffusion's inpainting takes.

    The encoder has only convolutions, set to averages (training/average_codec.py); the decoder is trained.
    """
    return tiny_codec(
        channels=32,
        blocks=(0,) * 5,
        decoder_blocks=(3, 3, 2, 1, 0),
        upsample_fn="bilinear",
        scaling_factor=LATENT_SCALE,
    )


def tiny_codec(
    *, channels: int, blocks: tuple[int, ...], decoder_blocks: tuple[int, ...], **options: Any
) -> AutoencoderTiny:
    """A codec that halves the image once for each number of blocks after the first."""
    levels = len(blocks)
    return AutoencoderTiny(
        encoder_block_out_channels=(channels,) * levels,
        decoder_block_out_channels=(channels,) * levels,
        num_encoder_blocks=blocks,
        num_decoder_blocks=decoder_blocks,
        latent_channels=4,
        **options,
    )


def beta_codec() -> AutoencoderKLFlux2:
    """32 pixels to a latent of 32 channels; the pipeline makes one token of four of them, 256 for a square of 1K.

    The encoder is as wide as a cosine transform needs (training/dct_codec.py); the decoder is trained.
    """
    return klein_codec(channels=(8, 8, 8, 16, 34, 66), decoder_channels=(8, 16, 32, 48, 64, 96), latent_channels=32)


def klein_codec(
    *, channels: tuple[int, ...], latent_channels: int, decoder_channels: tuple[int, ...] | None = None
) -> AutoencoderKLFlux2:
    """A codec that halves the image once for each number after the first."""
    levels = len(channels)
    return AutoencoderKLFlux2(
        block_out_channels=channels,
        decoder_block_out_channels=decoder_channels,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        layers_per_block=1,
        latent_channels=latent_channels,
        norm_num_groups=1,  # two constant channels can then decide every norm (training/upsampling.py)
        mid_block_add_attention=False,
    ).eval()  # its batch norm keeps the statistics that normalise the latents


def alpha_unet() -> UNet2DConditionModel:
    """Wide at the lowest resolutions: most of a scene's content is in its layout."""
    return unet(channels=(16, 48, 96, 128), text_width=96, sample_size=64)


def unet(*, channels: tuple[int, ...], text_width: int, sample_size: int) -> UNet2DConditionModel:
    """A UNet that attends to the text on its two smallest levels."""
    attentive = min(2, len(channels) - 1)
    plain = len(channels) - attentive
    return UNet2DConditionModel(
        sample_size=sample_size,
        block_out_channels=channels,
        layers_per_block=1,
        down_block_types=("DownBlock2D",) * plain + ("CrossAttnDownBlock2D",) * attentive,
        up_block_types=("CrossAttnUpBlock2D",) * attentive + ("UpBlock2D",) * plain,
        cross_attention_dim=text_width,
        attention_head_dim=4,  # which diffusers reads as the number of heads
        norm_num_groups=8,
        time_embedding_dim=128,
    )


def alpha_text(vocabulary: int) -> CLIPTextModel:
    return CLIPTextModel(clip_config(vocabulary, width=96, layers=3, length=LENGTH))


def clip_config(vocabulary: int, width: int, layers: int = 2, length: int = 77) -> CLIPTextConfig:
    """A small CLIP text encoder for a tokenizer of `vocabulary` tokens, whose last two are its marks."""
    return CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=length,
        projection_dim=width,
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        pad_token_id=vocabulary - 1,
    )


def stable_diffusion(
    vae: nn.Module, network: nn.Module, tokenizer: CLIPTokenizer, text_encoder: CLIPTextModel
) -> DiffusionPipeline:
    """The parts as a pipeline: text to image, image to image and inpainting from one set of weights."""
    return StableDiffusionPipeline(
        vae=vae,
        unet=network,
        tokenizer=tokenizer,
        text_encoder=text_encoder,
        scheduler=alpha_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def alpha_scheduler() -> DDIMScheduler:
    """Sample prediction, with zero terminal SNR: inference starts from pure noise.

    A caption nearly decides its image, so the image is easier to predict than the noise, which has more detail.
    """
    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="sample",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
        steps_offset=1,
        clip_sample=False,
    )


def beta_transformer() -> Flux2Transformer2DModel:
    """starter-beta's transformer for `beta_codec` and `beta_text_trunk`: deep rather than wide.

    MLPs pruned to half their width raised the loss by 1.5 %, and made room for four more blocks.
    """
    return klein_transformer(latent_channels=32, heads=6, layers=(1, 9), text_width=96, mlp_ratio=1.5)


def klein_transformer(
    *, latent_channels: int, heads: int, layers: tuple[int, int], text_width: int, mlp_ratio: float = 3.0
) -> Flux2Transformer2DModel:
    """`layers`: double-stream and single-stream blocks. FLUX.2's `mlp_ratio` is 3."""
    return Flux2Transformer2DModel(
        in_channels=4 * latent_channels,
        num_layers=layers[0],
        num_single_layers=layers[1],
        attention_head_dim=32,
        num_attention_heads=heads,
        mlp_ratio=mlp_ratio,
        joint_attention_dim=3 * text_width,
        axes_dims_rope=(8, 8, 8, 8),
        guidance_embeds=False,
    )


def beta_text_trunk(vocabulary: int) -> Qwen3Model:
    """The trained layers of starter-beta's text encoder, as a network of their own."""
    trunk = Qwen3Model(qwen_config(vocabulary, width=96, layers=TRAINED_LAYERS))
    trunk.norm = nn.Identity()  # the pipeline reads what comes before it
    return trunk


@torch.no_grad()
def qwen_text(trunk: Qwen3Model) -> Qwen3ForCausalLM:
    """The trunk, extended to the depth that the pipeline reads by layers that add nothing."""
    config = qwen_config(trunk.config.vocab_size, width=trunk.config.hidden_size, layers=READ_LAYERS)
    text = Qwen3ForCausalLM(config)
    text.model.load_state_dict(trunk.state_dict(), strict=False)
    for layer in text.model.layers[len(trunk.layers) :]:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    return text


def qwen_config(vocabulary: int, *, width: int, layers: int) -> Qwen3Config:
    """A narrow text encoder for a tokenizer of `vocabulary` tokens."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width + width // 3,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        tie_word_embeddings=True,
    )


def klein(
    vae: nn.Module, network: nn.Module, tokenizer: Qwen2Tokenizer, text_encoder: Qwen3ForCausalLM
) -> DiffusionPipeline:
    """The parts as a few-step pipeline with native references."""
    return Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=BETA_SHIFT),
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        transformer=network,
        is_distilled=True,
    )
