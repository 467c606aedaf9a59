"""The components of a diffusers folder that have weights, each by its library's own loader, which names the weights
that it missed.

A pipeline's `from_pretrained` would load them too, and not tell which weights it drew at random.
"""

import inspect
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from pipelines.checkpoints.classes.index import component_names
from pipelines.checkpoints.folder.folder import variants_in
from pipelines.device.weight_names import load_model

# Held while modules are built, adapters included: the libraries change what torch does for all threads meanwhile, and
# another thread's weights would come out without memory.
LOAD_LOCK = threading.Lock()
LIBRARIES: Mapping[str, Any] = {"diffusers": diffusers, "transformers": transformers}


def load_parts(
    folder: Path, pipeline_class: type[Any], index: Mapping[str, Any], variant: str | None, options: Mapping[str, Any]
) -> tuple[dict[str, torch.nn.Module], list[str]]:
    """Load the models of a folder that `options`, the arguments of the pipeline's `from_pretrained`, do not have yet.
    Returns them, and notes for the operator. Raises CheckpointError for weights that are missing or have no place."""
    quantization = options.get("quantization_config")
    methods = quantization.quant_mapping if quantization is not None else {}
    parts: dict[str, torch.nn.Module] = {}
    notes: list[str] = []
    for name, kind in model_classes(pipeline_class, index):
        if name in options or not (folder / name).is_dir():
            continue
        own = {"quantization_config": methods[name]} if name in methods else {}
        own |= {key: options[key] for key in ("device_map",) if key in options}
        own["torch_dtype" if issubclass(kind, diffusers.ModelMixin) else "dtype"] = options["torch_dtype"]
        own["variant"] = variant if variant in variants_in(folder / name) else None  # others have plain files
        parts[name], of_part = load_model(kind, folder / name, name, folder, **own)
        notes += of_part
    return parts, notes


def model_classes(pipeline_class: type[Any], index: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the components that a pipeline takes and that are models, with their classes. Diffusers' own pipelines may
    define some in their modules. Diffusers itself refuses other ones."""
    taken = inspect.signature(pipeline_class.__init__).parameters
    for name in (each for each in component_names(index) if each in taken):
        library, class_name = index[name]
        home = getattr(diffusers.pipelines, library, None) or LIBRARIES.get(library)
        kind = getattr(home, class_name, None)
        if isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin | transformers.PreTrainedModel):
            yield name, kind
