"""The names of weights in files against those of the model that was built for them, both ways.

Libraries draw the weights that files lack at random, or leave them empty, and drop those that have no place: the model
then computes something else than it was trained for. Every loader says here what it found.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.weight_file.header import read_header
from pipelines.device.memory import plain_tensors
from pipelines.families.registry import all_families

RUNNING_STATISTICS: Final = ("running_mean", "running_var")  # buffers that no constructor can compute
# Names of files of which nothing is lost. The model computes these itself; older versions of the libraries saved them.
COMPUTED: Final = (
    r"(^|\.)(position_ids|inv_freq|freqs_cis|pos_embed\.pos_embed|y_embedding|num_batches_tracked|masked_bias)$"
)
TIED: Final = r"^(\w+\.){0,2}(shared|embed_tokens|lm_head|embed_out)\.weight$"  # copies of another weight
COPIES: Final = r"^(model_ema|ema|ema_model|unet_ema|loss)[._]"  # of the whole model, for training
# What a model was trained with, or for, beside what is used of it
HEADS: Final = (
    r"^(\w+\.)?(pooler|\w*head\w*|cls|\w*classifier|score|qa_outputs|vocab_\w+|\w+_predictions|logit_\w+|\w+_projection|"
    r"\w+_projector|connector|vision\w*|visual\w*|image_\w+|audio\w*|decoder|mtp\w*)(?=\.|$)"
)
OTHER_HALF: Final = r"^(text_model|text_projection|logit_scale|logit_bias)(?=\.|$)"  # of encoders of images
BY_CLASS: Final[Mapping[str, str]] = {
    "AutoencoderKL": r"^(post_)?quant_conv\.",  # where the config says that it has none
}
QUANTIZERS: Final = re.compile(r"(absmax|quant_map|quant_state|SCB|weight_format|scale\w*|zero\w*|amax|g_idx)(\.|$)")

# Arguments of `from_pretrained` by which it goes on to the end and says what did not fit, for `check_loaded`
TELLING: Final[Mapping[str, bool]] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
# Of transformers: where it looks for an adapter of PEFT, which it would add to the model whose folder that is in
NO_ADAPTER: Final = {"adapter_kwargs": {"subfolder": "nowhere"}}


def load_model(
    kind: Any, folder: Path, part: str, shown_path: Path | None = None, **options: Any
) -> tuple[Any, list[str]]:
    """Load a model by its library, from safetensors on the disk alone, and check its weights as `check_loaded` does.
    `shown_path` is the path that messages name, by default the folder. Returns it, and notes for the operator."""
    options |= NO_ADAPTER if kind.__module__.startswith("transformers.") else {}
    model, info = kind.from_pretrained(folder, local_files_only=True, use_safetensors=True, **TELLING, **options)
    extra = _names_missing_in_index(folder, options.get("variant"))
    return model.eval(), check_loaded(shown_path or folder, part, model, info, extra)


def _names_missing_in_index(folder: Path, variant: str | None) -> set[str]:
    """Return the names in shards that their index leaves out. Diffusers goes by the index, transformers by the
    shards."""
    index = folder / f"diffusion_pytorch_model.safetensors.index{f'.{variant}' if variant else ''}.json"
    if not index.is_file():
        return set()
    listed: dict[str, str] = json.loads(index.read_text())["weight_map"]
    return {each.name for shard in set(listed.values()) for each in read_header(folder / shard).tensors} - listed.keys()


def check_loaded(
    path: Path, part: str, model: torch.nn.Module, info: Mapping[str, Any], extra: Iterable[str] = ()
) -> list[str]:
    """Check the weights of a model from `from_pretrained`, by a library's `output_loading_info`. `extra` are further
    names of the files, which the library has not seen.

    Returns notes for the operator. Raises CheckpointError.
    """
    if other := sorted(info["mismatched_keys"]):
        name, in_file, in_model = other[0]
        weights = _count_of(other, "weight of its files has", "weights of its files have")
        shapes = f"{list(in_file)} where its config says {list(in_model)}"
        raise CheckpointError(f"{path}: {part}: {weights} another shape, such as {name}: {shapes}")
    unused = {*info["unexpected_keys"], *extra}
    if getattr(getattr(model, "hf_quantizer", None), "pre_quantized", False):  # it has read them
        unused = {name for name in unused if not QUANTIZERS.search(name)}
    return check_names(path, part, model, _missing_weights(model, info["missing_keys"]), unused)


def check_names(
    path: Path, part: str, model: torch.nn.Module, missing: Collection[str], unused: Collection[str]
) -> list[str]:
    """Refuse weights that are missing or have no place. `part` is the component's name, such as "text_encoder". Returns
    notes for the operator. Raises CheckpointError."""
    if missing:
        weights = _count_of(missing, "weight is", "weights are")
        raise CheckpointError(f"{path}: {part}: {weights} not in its files, such as {min(missing)}")
    if lost := [name for name in unused if not _is_harmless(model, name)]:
        weights = _count_of(lost, "weight of its files has", "weights of its files have")
        place = "no place in the model that its config describes"
        raise CheckpointError(f"{path}: {part}: {weights} {place}, such as {min(lost)}")
    if not unused:
        return []
    weights = _count_of(unused, "weight of its files is", "weights of its files are")
    return [f"{part}: {weights} not needed, such as {min(unused)}"]


def uninitialized_weights(model: torch.nn.Module) -> list[str]:
    """Return the weights for which nothing was in the files: libraries build a model without memory, and fill it
    then."""
    return [name for name, weight in model.named_parameters() if any(part.is_meta for part in plain_tensors(weight))]


def _missing_weights(model: torch.nn.Module, names: Iterable[str]) -> set[str]:
    """Return the weights among the names that a library missed: transformers draws them at random, and diffusers leaves
    them empty. Other buffers are computed by the constructor."""
    drawn = {name for name, _ in model.named_parameters()} if hasattr(model, "init_weights") else set()
    return {
        *uninitialized_weights(model),
        *(name for name in names if name in drawn or name.endswith(RUNNING_STATISTICS)),
    }


def _is_harmless(model: torch.nn.Module, name: str) -> bool:
    """Return whether the model is the same without this weight of its files."""
    kind = type(model)
    of_families = [family.unneeded_weights.get(kind.__name__) for family in all_families()]
    always = (COMPUTED, TIED, COPIES, BY_CLASS.get(kind.__name__), *of_families)
    if any(pattern is not None and re.search(pattern, name) for pattern in always):
        return True
    if not hasattr(model, "init_weights"):  # no model of transformers, which are trained for several uses
        return False
    beside = re.search(OTHER_HALF if "Vision" in kind.__name__ else HEADS, name)
    return beside is not None and not _has_path(model, beside[0])


def _has_path(model: torch.nn.Module, path: str) -> bool:
    """Return whether a module or weight is at a path. Anything inside a module that is there may change its output."""
    for step in path.split("."):
        if not hasattr(model, step):
            return False
        model = getattr(model, step)
    return model is not None


def _count_of(names: Collection[str], one: str, several: str) -> str:
    return f"{len(names)} {one if len(names) == 1 else several}"
