"""A diffusers folder: its index, and the configs and files of its parts."""

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pipelines.checkpoints.classes.index import component_names, denoiser_name, model_index
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.versions import find_snapshot
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.header import WEIGHT_FILES, Tensor

# model.safetensors, model.fp16.safetensors, model-00001-of-00002.safetensors, model.fp16-00001-of-00002.safetensors
WEIGHTS: Final = re.compile(r"(?P<stem>[^.]+?)(\.(?P<variant>[^.]+?))?(-\d{5}-of-\d{5})?\.safetensors")


class CheckpointFolder:
    """A folder of a pipeline, or the snapshot that a hub cache folder stands for. Each of its files is read when
    something first asks for it, and kept as long as this object."""

    def __init__(self, path: Path) -> None:
        self.path = find_snapshot(path)
        self._configs: dict[str, dict[str, Any]] = {}
        self._files: dict[str, list[WeightFile]] = {}

    @cached_property
    def index(self) -> dict[str, Any]:
        """Return the index, with each component as [library, class]. Raises CheckpointError."""
        return model_index(self.path)

    def config(self, part: str) -> dict[str, Any]:
        """Return a component's config: config.json, or scheduler_config.json of a scheduler; empty without one."""
        if part not in self._configs:
            folder = self.path / part
            self._configs[part] = read_json(folder / "config.json") or read_json(folder / f"{part}_config.json")
        return self._configs[part]

    def files(self, part: str) -> list[WeightFile]:
        """Return the files of a component's weights, without variants of files that are also there without one."""
        if part not in self._files:
            self._files[part] = default_variant(self.path / part)
        return self._files[part]

    @cached_property
    def denoiser(self) -> list[Tensor]:
        """Return the denoiser's tensors; none of one that can't be read."""
        try:
            return [tensor for file in self.files(denoiser_name(self.index)) for tensor in file.tensors]
        except CheckpointError:
            return []

    def variants(self, index: dict[str, Any]) -> tuple[str, ...]:
        """Return the variants, such as "fp16", of which there are files of any component."""
        found = {variant for name in component_names(index) for variant in variants_in(self.path / name)}
        return tuple(sorted(variant for variant in found if variant))


def read_json(file: Path) -> dict[str, Any]:
    """Read a config file. It is empty if there is no file that can be read."""
    try:
        content = json.loads(file.read_text()) if file.is_file() else {}  # a pipe would be waited for
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def default_variant(folder: Path) -> list[WeightFile]:
    """Return a component's files, without variants such as fp16 of files that are also there without one."""
    matches = [(file, WEIGHTS.fullmatch(file.name)) for file in sorted(folder.glob(WEIGHT_FILES))]
    default = {match["stem"] for _, match in matches if match and not match["variant"]}
    others = [file for file, match in matches if match and match["variant"] and match["stem"] in default]
    return [WeightFile(file) for file, _ in matches if file not in others]


def variants_in(folder: Path) -> set[str | None]:
    """Return the variants of a component's files, such as "fp16"; None of those that are plain."""
    matches = (WEIGHTS.fullmatch(file.name) for file in folder.glob(WEIGHT_FILES))
    return {match["variant"] for match in matches if match}


def single_variant(folder: Path) -> str | None:
    """Return the variant of a folder's weights, if all of them are of one."""
    variants = variants_in(folder)
    return variants.pop() if len(variants) == 1 else None
