"""The starters' networks, untrained. A checkpoint is what these classes save; nothing else in the project knows them.

starter-alpha is a UNet of the Stable Diffusion family over a small autoencoder with 16-pixel latents; starter-beta is a
few-step transformer of the FLUX.2 klein family, which takes reference images natively. Both are small enough for a CPU.
"""

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
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SEED = 20261121
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def alpha() -> DiffusionPipeline:
    """starter-alpha: text to image, image to image and inpainting from one set of weights."""
    torch.manual_seed(SEED)
    return stable_diffusion(latent_levels=4, codec_channels=16, unet_channels=(48, 96, 160), text_width=128)


def beta() -> DiffusionPipeline:
    """starter-beta: four steps, references native."""
    torch.manual_seed(SEED)
    return klein(codec_channels=(8, 16, 32, 64, 64), heads=4, layers=(2, 4), text_width=64)


def stable_diffusion(
    *, latent_levels: int, codec_channels: int, unet_channels: tuple[int, ...], text_width: int
) -> DiffusionPipeline:
    """A Stable Diffusion pipeline whose latents are 2**latent_levels pixels wide."""
    blocks = latent_levels + 1
    vae = AutoencoderTiny(
        encoder_block_out_channels=(codec_channels,) * blocks,
        decoder_block_out_channels=(codec_channels,) * blocks,
        num_encoder_blocks=(1,) + (2,) * (blocks - 1),
        num_decoder_blocks=(2,) * (blocks - 1) + (1,),
        latent_channels=4,
    )
    levels = len(unet_channels)
    unet = UNet2DConditionModel(
        sample_size=1024 // 2**latent_levels,
        block_out_channels=unet_channels,
        layers_per_block=1,
        down_block_types=("DownBlock2D",) + ("CrossAttnDownBlock2D",) * (levels - 1),
        up_block_types=("CrossAttnUpBlock2D",) * (levels - 1) + ("UpBlock2D",),
        cross_attention_dim=text_width,
        attention_head_dim=min(8, unet_channels[0] // 8),
        norm_num_groups=8,
    )
    tokenizer = clip_tokenizer()
    return StableDiffusionPipeline(
        vae=vae,
        unet=unet,
        tokenizer=tokenizer,
        text_encoder=CLIPTextModel(clip_config(len(tokenizer), text_width)),
        scheduler=DDIMScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            clip_sample=False,
            set_alpha_to_one=False,
            steps_offset=1,
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def klein(
    *, codec_channels: tuple[int, ...], heads: int, layers: tuple[int, int], text_width: int
) -> DiffusionPipeline:
    """A FLUX.2 klein pipeline. The text encoder has 28 layers because the pipeline reads layers 9, 18 and 27."""
    latent_channels = 16
    levels = len(codec_channels)
    vae = AutoencoderKLFlux2(
        block_out_channels=codec_channels,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        layers_per_block=1,
        latent_channels=latent_channels,
        norm_num_groups=8,
        mid_block_add_attention=False,
    )
    vae.eval()  # before it is saved: its batch norm keeps the statistics that normalise the latents
    transformer = Flux2Transformer2DModel(
        in_channels=4 * latent_channels,
        num_layers=layers[0],
        num_single_layers=layers[1],
        attention_head_dim=32,
        num_attention_heads=heads,
        joint_attention_dim=3 * text_width,
        axes_dims_rope=(8, 8, 8, 8),
        guidance_embeds=False,
    )
    tokenizer = qwen_tokenizer()
    text_encoder = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=text_width,
            intermediate_size=2 * text_width,
            num_hidden_layers=28,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
        )
    )
    return Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        transformer=transformer,
        is_distilled=True,
    )


def clip_config(vocabulary: int, width: int) -> CLIPTextConfig:
    """A small CLIP text encoder for `clip_tokenizer`."""
    return CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        projection_dim=width,
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        pad_token_id=vocabulary - 1,
    )


def clip_tokenizer() -> CLIPTokenizer:
    """Bytes as tokens, in CLIP's format: any text, and nothing to download."""
    letters = sorted(ByteLevel.alphabet())
    names = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer({name: i for i, name in enumerate(names)}, [], model_max_length=77)


def qwen_tokenizer() -> Qwen2Tokenizer:
    """Bytes as tokens, in Qwen's format, with its chat marks."""
    names = [*sorted(ByteLevel.alphabet()), "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Qwen2Tokenizer({name: i for i, name in enumerate(names)}, [], model_max_length=512)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
