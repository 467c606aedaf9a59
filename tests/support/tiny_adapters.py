"""Adapters for tiny checkpoints, with seeded random factors, in the namings of trainers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import save_file

from pipelines.images.loading.base_state import base_modules

RANK: Final = 4
ALPHA: Final = 2.0
OF_UNETS: Final = ("sd15", "sdxl", "lcm", "instruct", "depth2img", "unclip", "deepfloyd")  # families
ATTENTION: Final = ("to_q", "to_k", "to_v", "to_out.0", "q_proj", "v_proj", "qkv")
Tensors = dict[str, torch.Tensor]
Deltas = dict[str, torch.Tensor]


def layers_of(model: torch.nn.Module, ends: tuple[str, ...] = ATTENTION) -> dict[str, torch.nn.Linear]:
    """The linear layers of a model whose names end so."""
    return {
        name: each for name, each in base_modules(model) if isinstance(each, torch.nn.Linear) and name.endswith(ends)
    }


class Naming:
    """How a trainer calls the factors of a layer."""

    def __init__(self, prefix: str, factors: tuple[str, str], *, dots: bool = True, alpha: bool = True) -> None:
        self.prefix, self.factors, self.dots, self.alpha = prefix, factors, dots, alpha

    def layer(self, name: str) -> str:
        return self.prefix + (name if self.dots else name.replace(".", "_"))

    def pair(self, name: str, down: torch.Tensor, up: torch.Tensor) -> Tensors:
        first, second = self.factors
        layer = self.layer(name)
        strength = {f"{layer}.alpha": torch.tensor(ALPHA)} if self.alpha else {}
        return {f"{layer}.{first}.weight": down, f"{layer}.{second}.weight": up, **strength}

    @property
    def scale(self) -> float:
        return ALPHA / RANK if self.alpha else 1.0


KOHYA: Final = ("lora_down", "lora_up")
PEFT: Final = ("lora_A", "lora_B")
NAMINGS: Final[Mapping[str, Naming]] = {
    "kohya": Naming("lora_unet_", KOHYA, dots=False),
    "onetrainer": Naming("lora_transformer_", KOHYA, dots=False),
    "onetrainer-new": Naming("transformer.", KOHYA),
    "ai-toolkit": Naming("diffusion_model.", PEFT, alpha=False),
    "alpha-beside-peft": Naming("diffusion_model.", PEFT),
    "diffusers": Naming("transformer.", PEFT, alpha=False),
    "bare-kohya": Naming("", KOHYA),
    "bare-peft": Naming("", ("lora_A.default", "lora_B.default"), alpha=False),
}


def naming_of(family: str, name: str) -> Naming:
    """A naming for a family: the denoisers of some are called `unet`."""
    naming = NAMINGS[name]
    if naming.prefix == "transformer." and family.startswith(OF_UNETS):
        return Naming("unet.", naming.factors, alpha=naming.alpha)
    return naming


def random_pairs(
    layers: Mapping[str, torch.nn.Linear], naming: Naming, seed: int = 1, size: float = 0.3
) -> tuple[Tensors, Deltas]:
    """The tensors of an adapter, and what it should add to each layer's weights."""
    random = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    deltas: Deltas = {}
    for name, layer in layers.items():
        outputs, inputs = layer.weight.shape
        down, up = (torch.randn(size_, generator=random) * size for size_ in ((RANK, inputs), (outputs, RANK)))
        tensors |= naming.pair(name, down, up)
        deltas[name] = up @ down * naming.scale
    return tensors, deltas


def save(tensors: Mapping[str, torch.Tensor], file: Path, metadata: Mapping[str, Any] | None = None) -> Path:
    """Write an adapter, in the place of one that is there, as people do: renamed into it."""
    part = file.with_suffix(".part")
    text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (metadata or {}).items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part, text or None)
    part.replace(file)
    return file


def added(model: torch.nn.Module) -> Deltas:
    """What the active adapters add to each layer's weights."""
    found: Deltas = {}
    for name, layer in model.named_modules():
        if isinstance(layer, BaseTunerLayer):
            kinds = [getattr(layer, each) for each in layer.adapter_layer_names]
            own = [each for each in layer.active_adapters if any(each in kind for kind in kinds)]
            if own:
                deltas = torch.stack([layer.get_delta_weight(each).detach() for each in own])  # type: ignore[operator]  # of its subclasses
                found[name] = deltas.sum(0).cpu()
    return found
