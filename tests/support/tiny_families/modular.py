"""Modular pipelines: the parts of other tiny checkpoints, with an index that names repositories on a hub."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers

from tests.support.tiny_families.flow_models import flux, sd3, z_image

REPOSITORY = "a-maker/a-model"  # on no disk: nothing may ask for it
CLASSES: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "modular-z-image": ("ZImageModularPipeline", z_image),
    "modular-flux": ("FluxModularPipeline", flux),
    "modular-sd3": ("StableDiffusion3ModularPipeline", sd3),
}


def make_modular(name: str, folder: Path) -> Path:
    """Save a checkpoint as its makers publish it: its index names their repository for each component."""
    class_name, make = CLASSES[name]
    pipeline = getattr(diffusers, class_name)()
    components = {part: value for part, value in make().components.items() if part in pipeline.component_names}
    pipeline.update_components(**components)
    pipeline.save_pretrained(str(folder), overwrite_modular_index=True)
    file = folder / "modular_model_index.json"
    index = json.loads(file.read_text())
    for entry in index.values():
        if isinstance(entry, list) and len(entry) == 3:
            entry[2]["pretrained_model_name_or_path"] = REPOSITORY
    file.write_text(json.dumps(index, indent=2))
    return folder
