"""The networks of published checkpoints at their real sizes, and one call of each.

Sizes are those of the checkpoints' configs, which are the defaults of diffusers' classes unless a value says otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import diffusers
import torch
import transformers

Network = torch.nn.Module
PATCH_PX: Final = 16  # of a transformer's token: the codec's 8, and 2 x 2 of its latents


@dataclass(frozen=True)
class Encoder:
    """A text encoder, and the tokens of a prompt."""

    make: Callable[[], Network]
    tokens: int
    all_layers: bool = False  # whether the pipeline reads the output of every layer


@dataclass(frozen=True)
class RealCheckpoint:
    """A checkpoint's networks. `step(denoiser, rows, width, height, references)` is one forward pass."""

    name: str
    denoiser: Callable[[], Network]
    step: Callable[[Network, int, int, int, int], Any]
    encoders: tuple[Encoder, ...]
    codec: Callable[[], Network]
    latent_channels: int
    rows: int = 1  # of an image: two where guidance takes a second one
    frames: bool = False  # whether the codec is one for video
    references: bool = False  # whether references are tokens beside the image


def weights(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return a tensor of this shape, of whatever values."""
    return torch.empty(*shape, dtype=dtype)


def tokens_of(width: int, height: int, references: int = 0) -> int:
    """Return the tokens of an image, and of its references of a megapixel each."""
    return width * height // PATCH_PX**2 + references * 1024**2 // PATCH_PX**2


def kl_codec(channels: int) -> Callable[[], Network]:
    """Return the maker of the autoencoder of Stable Diffusion, with so many channels."""
    return lambda: diffusers.AutoencoderKL(
        block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=channels,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        use_quant_conv=channels == 4, use_post_quant_conv=channels == 4,
    )  # fmt: skip


def of_config(model: Any, config: Any, **sizes: Any) -> Callable[[], Network]:
    """Return the maker of a model of transformers with these sizes."""
    return lambda: model(config(**sizes))  # type: ignore[no-any-return]


T5_XXL: Final = of_config(
    transformers.T5EncoderModel, transformers.T5Config,
    vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu",
)  # fmt: skip
QWEN3_4B: Final = of_config(
    transformers.Qwen3Model, transformers.Qwen3Config,
    vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128,
)  # fmt: skip
QWEN2_7B: Final = of_config(  # the language half of Qwen2.5-VL 7B, whose other half takes 1.3 GB more
    transformers.Qwen2Model, transformers.Qwen2Config,
    vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
    num_key_value_heads=4,
)  # fmt: skip
MISTRAL_SMALL: Final = of_config(
    transformers.MistralModel, transformers.MistralConfig,
    vocab_size=131072, hidden_size=5120, intermediate_size=32768, num_hidden_layers=40, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128,
)  # fmt: skip


def clip(width: int, layers: int, heads: int) -> Callable[[], Network]:
    """Return the maker of a CLIP text encoder."""
    return of_config(
        transformers.CLIPTextModel, transformers.CLIPTextConfig,
        hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=heads,
    )  # fmt: skip


CLIP_L: Final = Encoder(clip(768, 12, 12), 77)
CLIP_G: Final = Encoder(clip(1280, 32, 20), 77)


def _sdxl_unet() -> Network:
    return diffusers.UNet2DConditionModel(
        sample_size=128, block_out_channels=(320, 640, 1280), attention_head_dim=(5, 10, 20),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10), use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816, cross_attention_dim=2048,
    )  # fmt: skip


def _sdxl_step(unet: Network, rows: int, width: int, height: int, _: int) -> Any:
    added = {"text_embeds": weights(rows, 1280), "time_ids": weights(rows, 6)}
    latents = weights(rows, 4, height // 8, width // 8)
    return unet(latents, weights(rows), encoder_hidden_states=weights(rows, 77, 2048), added_cond_kwargs=added)


def _sd35_transformer() -> Network:
    return diffusers.SD3Transformer2DModel(
        sample_size=128, patch_size=2, in_channels=16, num_layers=38, attention_head_dim=64, num_attention_heads=38,
        joint_attention_dim=4096, caption_projection_dim=2432, pooled_projection_dim=2048, out_channels=16,
        pos_embed_max_size=192, qk_norm="rms_norm",
    )  # fmt: skip


def _sd35_step(transformer: Network, rows: int, width: int, height: int, _: int) -> Any:
    return transformer(
        hidden_states=weights(rows, 16, height // 8, width // 8), encoder_hidden_states=weights(rows, 333, 4096),
        pooled_projections=weights(rows, 2048), timestep=weights(rows),
    )  # fmt: skip


def _flux_step(transformer: Network, rows: int, width: int, height: int, references: int) -> Any:
    count = tokens_of(width, height, references)
    return transformer(
        hidden_states=weights(rows, count, 64), timestep=weights(rows), guidance=weights(rows, dtype=torch.float32),
        pooled_projections=weights(rows, 768), encoder_hidden_states=weights(rows, 512, 4096),
        txt_ids=weights(512, 3), img_ids=weights(count, 3),
    )  # fmt: skip


def _flux2_step(width_of_prompts: int, guided: bool) -> Callable[[Network, int, int, int, int], Any]:
    def step(transformer: Network, rows: int, width: int, height: int, references: int) -> Any:
        count = tokens_of(width, height, references)
        return transformer(
            hidden_states=weights(rows, count, 128), timestep=weights(rows), guidance=weights(rows) if guided else None,
            encoder_hidden_states=weights(rows, 512, width_of_prompts), txt_ids=weights(rows, 512, 4),
            img_ids=weights(rows, count, 4),
        )  # fmt: skip

    return step


def _qwen_step(transformer: Network, rows: int, width: int, height: int, references: int) -> Any:
    shape = [(1, height // PATCH_PX, width // PATCH_PX), *[(1, 64, 64)] * references]
    return transformer(
        hidden_states=weights(rows, tokens_of(width, height, references), 64), timestep=weights(rows),
        encoder_hidden_states=weights(rows, 512, 3584), encoder_hidden_states_mask=None, img_shapes=[shape] * rows,
    )  # fmt: skip


def _zimage_step(transformer: Network, rows: int, width: int, height: int, _: int) -> Any:
    latents = [weights(16, 1, height // 8, width // 8) for _ in range(rows)]
    return transformer(latents, weights(rows), [weights(256, 2560) for _ in range(rows)])


def _klein() -> Network:
    return diffusers.Flux2Transformer2DModel(
        num_layers=5, num_single_layers=20, num_attention_heads=24, joint_attention_dim=7680, guidance_embeds=False
    )


T5: Final = Encoder(T5_XXL, 512)
CHECKPOINTS: Final = (
    RealCheckpoint("SDXL", _sdxl_unet, _sdxl_step, (CLIP_L, CLIP_G), kl_codec(4), 4, rows=2),
    RealCheckpoint("SD 3.5 large", _sd35_transformer, _sd35_step, (CLIP_L, CLIP_G, T5), kl_codec(16), 16, rows=2),
    RealCheckpoint(
        "FLUX.2 klein 4B", _klein, _flux2_step(7680, guided=False), (Encoder(QWEN3_4B, 512, all_layers=True),),
        diffusers.AutoencoderKLFlux2, 32, references=True,
    ),
    RealCheckpoint(
        "Z-Image", diffusers.ZImageTransformer2DModel, _zimage_step, (Encoder(QWEN3_4B, 512, all_layers=True),),
        kl_codec(16), 16,
    ),
    RealCheckpoint(
        "FLUX.1", lambda: diffusers.FluxTransformer2DModel(guidance_embeds=True), _flux_step, (CLIP_L, T5),
        kl_codec(16), 16, references=True,
    ),
    RealCheckpoint(
        "Qwen-Image", diffusers.QwenImageTransformer2DModel, _qwen_step, (Encoder(QWEN2_7B, 1500, all_layers=True),),
        diffusers.AutoencoderKLQwenImage, 16, frames=True, references=True,
    ),
    RealCheckpoint(
        "FLUX.2 [dev]", diffusers.Flux2Transformer2DModel, _flux2_step(15360, guided=True),
        (Encoder(MISTRAL_SMALL, 512, all_layers=True),), diffusers.AutoencoderKLFlux2, 32, references=True,
    ),
)  # fmt: skip
