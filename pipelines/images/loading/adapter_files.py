"""An adapter's file as diffusers is given it: its strength is in its weights, and layers with a name of the model's
own are called by that. So no strength (`alpha`) is lost in some naming that a pipeline reads in another way."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from pipelines.checkpoints.errors import BrokenFile, CheckpointError
from pipelines.checkpoints.folder.versions import PEFT_CONFIG, PEFT_FILE
from pipelines.checkpoints.weight_file.adapters import BESIDE, KRONECKER, AdapterTensors, read_contents
from pipelines.checkpoints.weight_file.header import read_header

PEFT_PREFIX: Final = "base_model.model."
# In what trainers call layers by the model's own names: before those of the denoiser, and of text encoders.
DENOISER_PREFIXES: Final = (
    "lora_unet_", "lora_transformer_", "diffusion_model.", "model.diffusion_model.", "lycoris_", PEFT_PREFIX,
)  # fmt: skip
ENCODER_PREFIXES: Final = {
    "text_encoder": ("text_encoder.", "lora_te_", "lora_te1_"),
    "text_encoder_2": ("text_encoder_2.", "lora_te2_"),
}


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """The weights of an adapter, each layer's strength multiplied in."""

    weights: dict[str, torch.Tensor]
    contents: AdapterTensors
    strength_known: bool = True  # else it is of peft, without the config that has its strength

    @property
    def loadable_weights(self) -> dict[str, torch.Tensor]:
        """Return the weights without those that belong to no layer that diffusers takes."""
        own = {name for pair in self.contents.pairs.values() for name in pair}
        layers = (*self.contents.pairs, *self.contents.kronecker)
        own |= {f"{layer}.{beside}" for layer in layers for beside in BESIDE}
        return {name: weight for name, weight in self.weights.items() if name in own or KRONECKER.search(name)}


def read_adapter_file(path: Path) -> AdapterFile:
    """Read an adapter from the disk. Raises CheckpointError with the reason why no model takes it."""
    try:
        header = read_header(path)
    except BrokenFile as error:
        raise CheckpointError(str(error).removeprefix(f"{path}: ")) from error
    contents, problem = read_contents(header)
    if problem is not None:
        raise CheckpointError(problem)
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:  # such as of a type that torch does not have
        raise CheckpointError(f"it can't be read: {error}") from error
    if broken := next((name for name, weight in weights.items() if not is_finite(weight)), None):
        raise CheckpointError(f"it has weights that are not numbers, such as in {broken}")
    config = _peft_config(path, header.metadata)
    for layer, (down, up) in contents.pairs.items():
        _multiply_in(weights, layer, down, up, config)
    for layer in contents.kronecker:
        _multiply_into_kronecker(weights, layer)
    of_peft = bool(contents.pairs) and all(layer.startswith(PEFT_PREFIX) for layer in contents.pairs)
    return AdapterFile(weights, contents, bool(config) or not of_peft)


def is_finite(weight: torch.Tensor) -> bool:
    """Return whether all numbers are finite: by the sum, which takes no copy, and by each only where that is not."""
    wide = weight.float() if weight.element_size() == 1 else weight  # float8 has no sums
    return not weight.is_floating_point() or bool(wide.sum(dtype=torch.float32).isfinite() or wide.isfinite().all())


def _peft_config(path: Path, metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """Read peft's config, which has the adapter's strength, from the header (diffusers) or a file beside it (peft).
    Raises CheckpointError if it can't be read: the strength would be a guess."""
    beside = path.with_name(PEFT_CONFIG)
    try:
        if "lora_adapter_metadata" in metadata:
            found = json.loads(metadata["lora_adapter_metadata"])
        else:
            found = json.loads(beside.read_text()) if path.name == PEFT_FILE else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{PEFT_CONFIG}, which has its strength, can't be read beside it") from error
    return found if isinstance(found, dict) else {}


def _multiply_in(weights: dict[str, torch.Tensor], layer: str, down: str, up: str, config: Mapping[str, Any]) -> None:
    """Make the strength of a pair 1. A scalar `alpha` that a naming needs to be read at all is left, as the rank."""
    rank = weights[down].shape[0]
    if (middle := weights.pop(f"{layer}.lora_mid.weight", None)) is not None:  # of a convolution, by LyCORIS
        weights[down] = torch.einsum("rshw,si->rihw", middle, weights[down].flatten(1))
    alpha = weights.pop(f"{layer}.alpha", None)
    scale = _scale(config, layer, rank) if alpha is None else float(alpha) / rank
    if scale != 1:
        weights[up] = (weights[up].float() * scale).to(weights[up].dtype)
        if (bias := f"{layer}.lora_B.bias") in weights:
            weights[bias] = (weights[bias].float() * scale).to(weights[bias].dtype)
    if alpha is not None and ".lora_down" in down:
        weights[f"{layer}.alpha"] = torch.tensor(float(rank))


def _multiply_into_kronecker(weights: dict[str, torch.Tensor], layer: str) -> None:
    """Multiply the strength of a LoKr layer into its weights. LyCORIS scales only the factors that are pairs
    themselves."""
    alpha = weights.pop(f"{layer}.alpha", None)
    inner = weights.get(f"{layer}.lokr_w2_b", weights.get(f"{layer}.lokr_w1_b"))
    if alpha is not None and inner is not None:
        first = f"{layer}.lokr_w1" if f"{layer}.lokr_w1" in weights else f"{layer}.lokr_w1_a"
        weights[first] = (weights[first].float() * (float(alpha) / inner.shape[0])).to(weights[first].dtype)


def _scale(config: Mapping[str, Any], layer: str, rank: int) -> float:
    """Return a layer's strength by peft's config: `lora_alpha`, or its value in `alpha_pattern`. Diffusers' config has
    one for each component, whose names begin with it."""
    part = next((f"{name}." for name in ("transformer", "unet", *ENCODER_PREFIXES) if f"{name}.r" in config), "")
    if part:
        part = f"{layer.split('.')[0]}."
    alpha = config.get(f"{part}lora_alpha")
    patterns = config.get(f"{part}alpha_pattern") or {}
    alpha = next((value for key, value in patterns.items() if re.match(rf"^(.*\.)?({key})$", layer)), alpha)
    if alpha is None:
        return 1.0
    return float(alpha) / (math.sqrt(rank) if config.get(f"{part}use_rslora") else rank)


def pair_squared_norm(down: torch.Tensor, up: torch.Tensor) -> float:
    """Return the squared norm of the product of a pair."""
    inner, outer = down.flatten(1).float(), up.flatten(1).float()
    return float(((inner @ inner.T) * (outer.T @ outer)).sum())


def squared_norm(weights: Mapping[str, torch.Tensor], contents: AdapterTensors) -> float:
    """Return the squared norm of all pairs. Renaming, and dividing one pair between layers, keep it."""
    return sum(pair_squared_norm(weights[down], weights[up]) for down, up in contents.pairs.values())


def match_layer_names(file: AdapterFile, layers: Mapping[str, Mapping[str, torch.nn.Module]]) -> dict[str, str]:
    """Match a file's layers with the model's own names, written with dots or underscores, and return peft's names by
    layer. `layers` has the model's by component, the denoiser first."""
    if not file.strength_known:
        return {}
    known = {component: {name.replace(".", "_"): name for name in modules} for component, modules in layers.items()}
    found = {}
    for layer in (*file.contents.pairs, *file.contents.kronecker):
        for component, names in known.items():
            prefixes = ENCODER_PREFIXES.get(component, (f"{component}.", *DENOISER_PREFIXES, ""))
            prefixes = (f"{PEFT_PREFIX}{component}.", *prefixes)
            plain = (layer.removeprefix(prefix) for prefix in prefixes if layer.startswith(prefix))
            options = (each.replace(".", "_").removeprefix(cut) for each in plain for cut in ("", "text_model_"))
            if (name := next((names[each] for each in options if each in names), None)) is not None:
                found[layer] = f"{component}.{name}"
                break
    return found


def with_peft_names(file: AdapterFile, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Return the weights of these layers by peft's names."""
    weights: dict[str, torch.Tensor] = {}
    for layer, name in names.items():
        if layer in file.contents.kronecker:
            factors = (each for each in file.weights if each.startswith(f"{layer}.lokr_"))
            weights |= {f"{name}.{each.removeprefix(f'{layer}.')}": file.weights[each] for each in factors}
            continue
        down, up = file.contents.pairs[layer]
        weights[f"{name}.lora_A.weight"], weights[f"{name}.lora_B.weight"] = file.weights[down], file.weights[up]
        for beside in ("lora_B.bias", "lora_magnitude_vector", "lora_magnitude_vector.weight"):
            if (weight := file.weights.get(f"{layer}.{beside}")) is not None:
                weights[f"{name}.{beside.removesuffix('.weight')}"] = weight
    return weights


def with_kohya_names(file: AdapterFile) -> dict[str, torch.Tensor]:
    """Return the weights with kohya's word for the factors in place of peft's: some classes read the names of layers
    of their first publishers with that alone."""
    weights = {}
    for name, weight in file.loadable_weights.items():
        spelled = name.replace(".lora_A.", ".lora_down.").replace(".lora_B.", ".lora_up.").replace(".default.", ".")
        weights[spelled] = weight
    return weights
