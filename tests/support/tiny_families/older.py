"""Families of before 2025 beside Stable Diffusion: Kolors, Hunyuan-DiT, Kandinsky 2 and 3, DeepFloyd IF and others."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from diffusers import UNet2DConditionModel
from diffusers.pipelines.kandinsky.text_encoder import MCLIPConfig, MultilingualCLIP
from tokenizers.processors import TemplateProcessing

from starters.architectures import clip_config
from starters.tokens import clip_tokenizer
from tests.support.tiny_families.flow_models import pixart, sana, sd3
from tests.support.tiny_families.parts import (
    PRINTABLE,
    SPACE,
    clip,
    codec,
    flow,
    gemma_tokenizer,
    stirred,
    t5,
    t5_tokenizer,
)
from tests.support.tiny_families.unets import BETAS, sd15, sdxl

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def pixart_alpha() -> Any:
    """It was trained for 256 px: its class draws the nearest of a list of sizes of that area."""
    torch.manual_seed(60)
    transformer = diffusers.PixArtTransformer2DModel(
        sample_size=32, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=3, caption_channels=32,
        in_channels=4, cross_attention_dim=24, out_channels=8, attention_bias=True, activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000, use_additional_conditions=False, norm_type="ada_norm_single",
        norm_elementwise_affine=False, norm_eps=1e-6,
    )  # fmt: skip
    return diffusers.PixArtAlphaPipeline(
        transformer=stirred(transformer), vae=codec(scaling_factor=0.18215),
        scheduler=diffusers.DPMSolverMultistepScheduler(), text_encoder=t5(), tokenizer=t5_tokenizer(),
    )  # fmt: skip


def lumina() -> Any:
    """Lumina-Next."""
    torch.manual_seed(61)
    tokenizer = gemma_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(  # else there is nothing to read in an empty prompt
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
    )
    encoder = transformers.GemmaModel(
        transformers.GemmaConfig(
            head_dim=8, hidden_size=16, intermediate_size=32, num_attention_heads=2, num_hidden_layers=2,
            num_key_value_heads=2, vocab_size=len(tokenizer) + 8,
        )
    ).eval()  # fmt: skip
    transformer = diffusers.LuminaNextDiT2DModel(
        sample_size=128, patch_size=2, in_channels=4, hidden_size=16, num_layers=2, num_attention_heads=2,
        num_kv_heads=1, multiple_of=16, norm_eps=1e-5, learn_sigma=True, qk_norm=True, cross_attention_dim=16,
        scaling_factor=1.0,
    )  # fmt: skip
    return diffusers.LuminaPipeline(
        transformer=stirred(transformer), vae=codec(scaling_factor=0.13025), scheduler=flow(), text_encoder=encoder,
        tokenizer=tokenizer,
    )  # fmt: skip


def hunyuan_dit(kind: type[Any] | None = None) -> Any:
    torch.manual_seed(62)
    words = [*WORDS, *"abcdefghijklmnopqrstuvwxyz,.", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    tokenizer = transformers.BertTokenizer({word: number for number, word in enumerate(words)}, model_max_length=77)
    bert = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
        )
    ).eval()
    transformer = diffusers.HunyuanDiT2DModel(
        sample_size=128, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=4, in_channels=4,
        cross_attention_dim=32, cross_attention_dim_t5=32, pooled_projection_dim=16, hidden_size=32,
        activation_fn="gelu-approximate", text_len=77, text_len_t5=256, learn_sigma=True,
    )  # fmt: skip
    return (kind or diffusers.HunyuanDiTPipeline)(
        transformer=stirred(transformer), vae=codec(scaling_factor=0.13025),
        scheduler=diffusers.DDPMScheduler(**BETAS | {"beta_end": 0.02}, prediction_type="v_prediction"),
        text_encoder=bert, tokenizer=tokenizer, text_encoder_2=t5(), tokenizer_2=t5_tokenizer(256),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def kolors(kind: type[Any] | None = None) -> Any:
    """It needs sentencepiece."""
    from diffusers.pipelines.kolors.text_encoder import ChatGLMConfig, ChatGLMModel
    from diffusers.pipelines.kolors.tokenizer import ChatGLMTokenizer
    from sentencepiece import SentencePieceTrainer

    torch.manual_seed(63)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tokenizer"
        letters = " ".join("abcdefghijklmnopqrstuvwxyz,.")
        SentencePieceTrainer.train(
            sentence_iterator=iter([letters, "a red house", "on green grass"]), model_prefix=str(model), vocab_size=48,
            model_type="char", hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        kept = Path(tempfile.gettempdir()) / f"kolors-{os.getuid()}.model"  # its class reads the file as it is saved
        kept.write_bytes(model.with_suffix(".model").read_bytes())
    tokenizer = ChatGLMTokenizer(str(kept))
    encoder = ChatGLMModel(
        ChatGLMConfig(
            num_layers=2, padded_vocab_size=128, hidden_size=32, ffn_hidden_size=32, kv_channels=16,
            num_attention_heads=2, seq_length=256, rmsnorm=True, add_qkv_bias=True, post_layer_norm=True,
            bias_dropout_fusion=True, multi_query_attention=True, multi_query_group_num=1,
            original_rope=True,
        )
    ).eval()  # fmt: skip
    with torch.no_grad():  # uninitialised memory otherwise
        for weight in encoder.parameters():
            weight.normal_(std=0.2) if weight.dim() > 1 else weight.fill_(1)
    unet = UNet2DConditionModel(
        sample_size=128, block_out_channels=(8, 16), layers_per_block=1, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4), use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=8, transformer_layers_per_block=(1, 2), projection_class_embeddings_input_dim=80,
        cross_attention_dim=32, encoder_hid_dim=32, encoder_hid_dim_type="text_proj", norm_num_groups=4,
    )  # fmt: skip
    return (kind or diffusers.KolorsPipeline)(
        vae=codec(scaling_factor=0.13025), text_encoder=encoder, tokenizer=tokenizer, unet=unet,
        scheduler=diffusers.EulerDiscreteScheduler(**BETAS, steps_offset=1, timestep_spacing="leading"),
    )  # fmt: skip


def cogview3() -> Any:
    torch.manual_seed(64)
    transformer = diffusers.CogView3PlusTransformer2DModel(
        patch_size=2, in_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2, out_channels=4,
        text_embed_dim=32, time_embed_dim=16, condition_dim=4, pos_embed_max_size=256, sample_size=128,
    )  # fmt: skip
    return diffusers.CogView3PlusPipeline(
        transformer=stirred(transformer), vae=codec(scaling_factor=0.18215),
        scheduler=diffusers.CogVideoXDDIMScheduler(), text_encoder=t5(), tokenizer=t5_tokenizer(224),
    )  # fmt: skip


def deepfloyd_if() -> Any:
    """The first of three stages: it draws 64 x 64 pixels, without a codec. It attends to an eighth of them."""
    torch.manual_seed(65)
    unet = UNet2DConditionModel(
        sample_size=64, layers_per_block=1, block_out_channels=(8, 8, 8, 16), norm_num_groups=4,
        down_block_types=(*("ResnetDownsampleBlock2D",) * 3, "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", *("ResnetUpsampleBlock2D",) * 3), in_channels=3, out_channels=6,
        cross_attention_dim=32, encoder_hid_dim=32, attention_head_dim=8, addition_embed_type="text",
        addition_embed_type_num_heads=2, cross_attention_norm="group_norm", resnet_time_scale_shift="scale_shift",
        act_fn="gelu",
    )  # fmt: skip
    scheduler = diffusers.DDPMScheduler(
        beta_schedule="squaredcos_cap_v2",
        thresholding=True,
        dynamic_thresholding_ratio=0.95,
        sample_max_value=1.5,
        variance_type="learned_range",
    )
    return diffusers.IFPipeline(
        text_encoder=t5(), tokenizer=t5_tokenizer(77), unet=unet, scheduler=scheduler, watermarker=None,
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def movq() -> Any:
    """The codec of Kandinsky 2 and 3: 8 pixels to a latent."""
    return diffusers.VQModel(
        block_out_channels=(32, 32, 32, 32), down_block_types=("DownEncoderBlock2D",) * 4, in_channels=3,
        latent_channels=4, layers_per_block=1, norm_num_groups=4, norm_type="spatial", num_vq_embeddings=12,
        out_channels=3, up_block_types=("UpDecoderBlock2D",) * 4, vq_embed_dim=4, mid_block_add_attention=False,
    )  # fmt: skip


def kandinsky3() -> Any:
    torch.manual_seed(66)
    unet = diffusers.Kandinsky3UNet(
        in_channels=4, time_embedding_dim=8, groups=2, attention_head_dim=4, layers_per_block=2,
        block_out_channels=(8, 16), cross_attention_dim=8, encoder_hid_dim=32,
    )  # fmt: skip
    scheduler = diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2", clip_sample=True)
    return diffusers.Kandinsky3Pipeline(
        unet=unet, scheduler=scheduler, movq=movq(), text_encoder=t5(), tokenizer=t5_tokenizer(128)
    )


def _kandinsky_prior() -> dict[str, Any]:
    """The parts by which Kandinsky 2 draws an image's embedding from a prompt."""
    tokenizer = clip_tokenizer()
    vision = transformers.CLIPVisionModelWithProjection(
        transformers.CLIPVisionConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32,
            patch_size=8, projection_dim=32,
        )
    )  # fmt: skip
    return {
        "prior_prior": stirred(
            diffusers.PriorTransformer(num_attention_heads=2, attention_head_dim=16, embedding_dim=32, num_layers=1)
        ),
        "prior_image_encoder": vision,
        "prior_text_encoder": transformers.CLIPTextModelWithProjection(clip_config(len(tokenizer), 32, 2, 77)),
        "prior_tokenizer": tokenizer,
        "prior_scheduler": diffusers.UnCLIPScheduler(
            variance_type="fixed_small_log", prediction_type="sample", num_train_timesteps=1000, clip_sample=True,
            clip_sample_range=10.0,
        ),
        "prior_image_processor": transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32),
    }  # fmt: skip


def _kandinsky_unet(in_channels: int, condition: str, **options: Any) -> UNet2DConditionModel:
    """Its condition is an image's embedding, and in version 2.1 a text's beside it."""
    return UNet2DConditionModel(
        in_channels=in_channels, out_channels=8, sample_size=64, addition_embed_type=condition, encoder_hid_dim=32,
        encoder_hid_dim_type=f"{condition}_proj", cross_attention_dim=32, attention_head_dim=4, norm_num_groups=4,
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn", block_out_channels=(16, 32), layers_per_block=1,
        resnet_time_scale_shift="scale_shift", **options,
    )  # fmt: skip


def kandinsky22(kind: type[Any] = diffusers.KandinskyV22CombinedPipeline, *, in_channels: int = 4) -> Any:
    torch.manual_seed(67)
    scheduler = diffusers.DDPMScheduler(
        beta_schedule="linear", beta_start=0.00085, beta_end=0.012, variance_type="learned_range"
    )
    unet = _kandinsky_unet(in_channels, "image")
    return kind(unet=unet, scheduler=scheduler, movq=movq(), **_kandinsky_prior())


def kandinsky21(kind: type[Any] = diffusers.KandinskyCombinedPipeline, *, in_channels: int = 4) -> Any:
    """Its decoder has a text encoder of its own."""
    torch.manual_seed(70)
    pieces = [(mark, 0.0) for mark in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    pieces += [(letter, -2.0) for letter in (SPACE, *PRINTABLE)]
    tokenizer = transformers.XLMRobertaTokenizer(vocab=pieces, model_max_length=77)
    config = MCLIPConfig(
        transformerDimSize=32, imageDimSize=32, hidden_size=32, intermediate_size=37, num_attention_heads=2,
        num_hidden_layers=1, vocab_size=len(tokenizer), max_position_embeddings=80,
    )  # fmt: skip
    return kind(
        text_encoder=MultilingualCLIP(config).eval(), tokenizer=tokenizer, movq=movq(),
        unet=_kandinsky_unet(in_channels, "text_image", addition_embed_type_num_heads=2),
        scheduler=diffusers.DDIMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False),
        **_kandinsky_prior(),
    )  # fmt: skip


def latent_diffusion() -> Any:
    torch.manual_seed(68)
    tokenizer = clip_tokenizer()
    parts = sd15().components
    return diffusers.LDMTextToImagePipeline(
        vqvae=parts["vae"], bert=clip(tokenizer), tokenizer=tokenizer, unet=parts["unet"],
        scheduler=diffusers.DDIMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False),
    )  # fmt: skip


def depth2img() -> Any:
    """It redraws an image along its depth, which a network of its own estimates."""
    torch.manual_seed(69)
    parts = sd15(in_channels=5).components
    backbone = {
        "global_padding": "same", "layer_type": "bottleneck", "depths": [1, 1, 1], "hidden_sizes": [8, 8, 8],
        "num_channels": 3, "out_features": ["stage1", "stage2", "stage3"], "embedding_dynamic_padding": True,
        "embedding_size": 8, "num_groups": 4,
    }  # fmt: skip
    estimator = transformers.DPTForDepthEstimation(
        transformers.DPTConfig(
            image_size=32, patch_size=16, num_channels=3, hidden_size=32, num_hidden_layers=4, num_attention_heads=2,
            backbone_out_indices=[0, 1, 2, 3], intermediate_size=37, is_decoder=False, is_hybrid=True,
            backbone_config=transformers.BitConfig(**backbone), backbone_featmap_shape=[1, 8, 24, 24],
            neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8,
        )
    ).eval()  # fmt: skip
    return diffusers.StableDiffusionDepth2ImgPipeline(
        **{name: parts[name] for name in ("vae", "unet", "tokenizer", "text_encoder", "scheduler")},
        depth_estimator=estimator, feature_extractor=transformers.DPTImageProcessor(size={"height": 32, "width": 32}),
    )  # fmt: skip


def unclip(kind: type[Any] | None = None) -> Any:
    torch.manual_seed(70)
    from diffusers.pipelines.stable_diffusion.stable_unclip_image_normalizer import StableUnCLIPImageNormalizer

    tokenizer = clip_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=64, in_channels=4, out_channels=4, norm_num_groups=4, block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=(2, 4), class_embed_type="projection", projection_class_embeddings_input_dim=64,
        cross_attention_dim=32, layers_per_block=1, use_linear_projection=True,
    )  # fmt: skip
    parts = {
        "image_normalizer": StableUnCLIPImageNormalizer(embedding_dim=32),
        "image_noising_scheduler": diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2"),
        "tokenizer": tokenizer,
        "text_encoder": clip(tokenizer),
        "unet": unet,
        "scheduler": diffusers.DDIMScheduler(
            **BETAS, prediction_type="v_prediction", set_alpha_to_one=False, steps_offset=1
        ),
        "vae": codec(scaling_factor=0.18215),
    }
    prior = _kandinsky_prior()
    if kind is not None:
        return kind(
            feature_extractor=prior["prior_image_processor"], image_encoder=prior["prior_image_encoder"], **parts
        )
    scheduler = diffusers.DDPMScheduler(
        variance_type="fixed_small_log", prediction_type="sample", clip_sample=True, clip_sample_range=5.0,
        beta_schedule="squaredcos_cap_v2",
    )  # fmt: skip
    return diffusers.StableUnCLIPPipeline(
        prior_tokenizer=prior["prior_tokenizer"], prior_text_encoder=prior["prior_text_encoder"],
        prior=prior["prior_prior"], prior_scheduler=scheduler, **parts,
    )  # fmt: skip


MAKERS: dict[str, Callable[[], Any]] = {
    "pixart-alpha": pixart_alpha,
    "lumina": lumina,
    "hunyuan-dit": hunyuan_dit,
    "kolors": kolors,
    "cogview3": cogview3,
    "deepfloyd-if": deepfloyd_if,
    "kandinsky21": kandinsky21,
    "kandinsky21-inpaint": lambda: kandinsky21(diffusers.KandinskyInpaintCombinedPipeline, in_channels=9),
    "kandinsky22": kandinsky22,
    "kandinsky22-inpaint": lambda: kandinsky22(diffusers.KandinskyV22InpaintCombinedPipeline, in_channels=9),
    "kandinsky3": kandinsky3,
    "latent-diffusion": latent_diffusion,
    "depth2img": depth2img,
    "unclip": unclip,
    "unclip-img2img": lambda: unclip(diffusers.StableUnCLIPImg2ImgPipeline),
    "sdxl-pix2pix": lambda: sdxl(diffusers.StableDiffusionXLInstructPix2PixPipeline, in_channels=8),
    "sd15-pag": lambda: sd15(diffusers.StableDiffusionPAGPipeline),
    "sdxl-pag": lambda: sdxl(diffusers.StableDiffusionXLPAGPipeline),
    "hunyuan-dit-pag": lambda: hunyuan_dit(diffusers.HunyuanDiTPAGPipeline),
    "kolors-pag": lambda: kolors(diffusers.KolorsPAGPipeline),
    "sd3-pag": lambda: sd3(diffusers.StableDiffusion3PAGPipeline),
    "pixart-pag": lambda: pixart(diffusers.PixArtSigmaPAGPipeline),
    "sana-pag": lambda: sana(diffusers.SanaPAGPipeline),
}
