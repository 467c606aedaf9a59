"""Modular pipelines: the parts of other tiny checkpoints, with an index that names repositories on a hub."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from starters.architectures import qwen_config
from tests.support.tiny_families.channels import qwen_image_21
from tests.support.tiny_families.flow_models import flux, qwen_image, sd3, z_image
from tests.support.tiny_families.from_text import ernie_image, flux2_codec, ideogram4, krea2
from tests.support.tiny_families.parts import flow, qwen_tokenizer, stirred, t5_tokenizer
from tests.support.tiny_families.qwen import qwen3_vl, qwen3_vl_processor, qwen_codec
from tests.support.tiny_families.references import flux2, klein, qwen_edit, qwen_layered
from tests.support.tiny_families.unets import sdxl

KREA2_LAYERS = tuple(range(2, 36, 3))  # its block reads these of any text encoder
REPOSITORY = "a-maker/a-model"  # on no disk: nothing may ask for it
Parts = Mapping[str, Any]


def flux3(*, distilled: bool) -> Parts:
    """FLUX.3, which has modular classes alone. Its prompt upsampler is a model of its own. It needs torchvision."""
    torch.manual_seed(51)
    tokenizer = qwen_tokenizer()
    transformer = diffusers.Flux3Transformer2DModel(
        in_channels=64, cond_in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=8 * 16, axes_dims_rope=(4, 4, 4, 4), flow_map=distilled,
    )  # fmt: skip
    return {
        "text_encoder": qwen3_vl(tokenizer, layers=32), "tokenizer": qwen3_vl_processor(tokenizer),
        "vae": flux2_codec(), "transformer": stirred(transformer),
    }  # fmt: skip


def anima() -> Parts:
    """Its text encoder's states are read by a network of its own, by T5's tokens."""
    torch.manual_seed(52)
    tokenizer, t5 = qwen_tokenizer(), t5_tokenizer()
    transformer = diffusers.CosmosTransformer3DModel(
        in_channels=16, out_channels=16, num_attention_heads=2, attention_head_dim=16, num_layers=1, mlp_ratio=2,
        text_embed_dim=32, adaln_lora_dim=4, max_size=(4, 128, 128), extra_pos_embed_type=None,
    )  # fmt: skip
    conditioner = diffusers.AnimaTextConditioner(
        source_dim=32, target_dim=32, model_dim=32, num_layers=1, num_attention_heads=2, target_vocab_size=200,
        min_sequence_length=64,
    )  # fmt: skip
    return {
        "text_encoder": transformers.Qwen3Model(qwen_config(len(tokenizer), width=32, layers=2)),
        "tokenizer": tokenizer, "t5_tokenizer": t5, "text_conditioner": conditioner,
        "transformer": stirred(transformer), "vae": qwen_codec(), "scheduler": flow(shift=3.0),
    }  # fmt: skip


def parts_of(make: Callable[[], Any]) -> Callable[[], Parts]:
    """Return a function that makes the parts of another checkpoint."""
    return lambda: make().components


CLASSES: Mapping[str, tuple[str, Callable[[], Parts]]] = {
    "modular-z-image": ("ZImageModularPipeline", parts_of(z_image)),
    "modular-flux": ("FluxModularPipeline", parts_of(flux)),
    "modular-sd3": ("StableDiffusion3ModularPipeline", parts_of(sd3)),
    "modular-sdxl": ("StableDiffusionXLModularPipeline", parts_of(sdxl)),
    "modular-qwen-image": ("QwenImageModularPipeline", parts_of(qwen_image)),
    "modular-qwen-edit": ("QwenImageEditModularPipeline", parts_of(qwen_edit)),
    "modular-qwen-edit-plus": ("QwenImageEditPlusModularPipeline", parts_of(qwen_edit)),
    "modular-qwen-image-21": ("QwenImage21ModularPipeline", parts_of(qwen_image_21)),
    "modular-qwen-image-21-turbo": ("QwenImage21TurboModularPipeline", parts_of(qwen_image_21)),
    "modular-qwen-layered": ("QwenImageLayeredModularPipeline", parts_of(qwen_layered)),
    "modular-kontext": ("FluxKontextModularPipeline", parts_of(flux)),
    "modular-flux2": ("Flux2ModularPipeline", parts_of(flux2)),
    "modular-klein": ("Flux2KleinModularPipeline", parts_of(klein)),
    "modular-klein-base": ("Flux2KleinBaseModularPipeline", parts_of(klein)),
    "modular-flux3": ("Flux3ModularPipeline", lambda: flux3(distilled=False)),
    "modular-flux3-distilled": ("Flux3DistilledModularPipeline", lambda: flux3(distilled=True)),
    "modular-krea2": ("Krea2ModularPipeline", parts_of(lambda: krea2(layers=KREA2_LAYERS))),
    "modular-krea2-turbo": ("Krea2TurboModularPipeline", parts_of(lambda: krea2(layers=KREA2_LAYERS))),
    "modular-ernie-image": ("ErnieImageModularPipeline", parts_of(ernie_image)),
    "modular-anima": ("AnimaModularPipeline", anima),
    "modular-ideogram4": ("Ideogram4ModularPipeline", parts_of(ideogram4)),
}


NEED_TORCHVISION = {
    *("modular-qwen-edit", "modular-qwen-edit-plus", "modular-qwen-image-21", "modular-qwen-image-21-turbo"),
    *("modular-flux2", "modular-flux3", "modular-flux3-distilled", "modular-qwen-layered", "modular-anima"),
}


def make_modular(name: str, folder: Path) -> Path:
    """Save a checkpoint as its makers publish it: its index names their repository for each component."""
    class_name, make = CLASSES[name]
    pipeline = getattr(diffusers, class_name)()
    components = {part: value for part, value in make().items() if part in pipeline.component_names}
    pipeline.update_components(**components)
    pipeline.save_pretrained(str(folder), overwrite_modular_index=True)
    file = folder / "modular_model_index.json"
    index = json.loads(file.read_text())
    for entry in index.values():
        if isinstance(entry, list) and len(entry) == 3:
            entry[2]["pretrained_model_name_or_path"] = REPOSITORY
    file.write_text(json.dumps(index, indent=2))
    return folder
