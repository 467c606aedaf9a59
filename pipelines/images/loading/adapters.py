"""The adapters that requests name, in the weights of one loaded checkpoint.

Each is known by its file's version, so one that is replaced under its name is read again. The first time that a version
is loaded, the model beneath is digested before and after: one that has changed it is refused from then on, and the
weights, which are spoiled, are loaded anew.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.versions import FileVersion
from pipelines.checkpoints.weight_file.adapters import replaces_weights
from pipelines.images.loading.adapter_loading import UNSUPPORTED, adapted_components, load_adapter, takes_adapters
from pipelines.images.loading.base_state import base_state, changed
from pipelines.images.loading.file_hashes import FileHashes
from pipelines.images.loading.parts import LOAD_LOCK
from pipelines.images.tasks import UnsupportedTask
from pipelines.protocol.images import Lora
from pipelines.protocol.messages import AdapterFit

ATTEMPTS: Final = 3  # at reading a file that is being replaced


class ModifiedWeights(Exception):
    """The weights differ from those that were loaded: they must be loaded anew."""


@dataclass(slots=True)
class Adapters:
    """The adapters that are loaded, and the findings about each version of a file: how much of it fits, or why none."""

    known: dict[FileVersion, AdapterFit | str] = field(default_factory=dict)
    weights_modified: bool = False
    drawing: set[Hashable] = field(default_factory=set)  # runs between their beginning and their last pass
    _loaded: dict[str, FileVersion] = field(default_factory=dict)  # by their names in diffusers
    _hashes: FileHashes = field(default_factory=FileHashes)

    @property
    def fits(self) -> tuple[AdapterFit, ...]:
        """Return how much of each file fits that was loaded and is there still, sorted by name."""
        present = (found for version, found in self.known.items() if FileVersion.find(version.path) == version)
        return tuple(sorted(found for found in present if isinstance(found, AdapterFit)))

    def refuse(self, path: Path, reason: str) -> None:
        """Refuse a file, as it is now, that has changed the images of the checkpoint without it."""
        if (version := FileVersion.find(path)) is not None:
            self.known[version] = reason
        self.weights_modified = True

    def read(self, requested: Mapping[str, Lora]) -> None:
        """Read the files that a run will load, before it has the device. Those that can't be read are left to it."""
        for name, lora in requested.items():
            version = FileVersion.find(lora.path)
            if version is not None and self._loaded.get(name) != version:
                self._hashes.read(version)
                with LOAD_LOCK:  # a checkpoint that is being loaded would have the device wait, in the run's turn
                    pass

    def is_outdated(self, requested: Mapping[str, Lora]) -> bool:
        """Return whether the file of a loaded adapter has changed since it was read."""
        return any(
            name in self._loaded and self._loaded[name] != FileVersion.find(lora.path)
            for name, lora in requested.items()
        )

    def activate(self, pipeline: Any, always: Mapping[str, Lora], requested: Mapping[str, Lora]) -> dict[str, str]:
        """Add the requested adapters to the catalog's, remove all others, and set their weights. Those that other runs
        draw with stay, even if their files have changed. Returns the hashes of the requested files, as they were read,
        by name. Raises UnsupportedTask, and ModifiedWeights."""
        if self.weights_modified:
            raise ModifiedWeights
        if not takes_adapters(pipeline):
            raise UnsupportedTask("its class takes no LoRA adapters", "loras")
        current = {
            name
            for name, lora in requested.items()
            if name in self._loaded and (self.drawing or self._loaded[name] == FileVersion.find(lora.path))
        }
        present = {name for names in pipeline.get_list_adapters().values() for name in names}
        if unused := sorted(present - always.keys() - current):  # nothing else would free them
            pipeline.delete_adapters(unused)
        self._loaded = {name: version for name, version in self._loaded.items() if name in current}
        for name in requested.keys() - current:
            try:
                self._load(pipeline, requested[name].path, name)
            except CheckpointError as error:
                why = str(error).removeprefix(UNSUPPORTED)
                message = f"the adapter '{requested[name].path.stem}' does not fit it: {why}"
                raise UnsupportedTask(message, "loras") from error
        active = {**always, **requested}
        if active:
            pipeline.set_adapters(list(active), [lora.weight for lora in active.values()])
        return {lora.path.stem: self._hashes.known[self._loaded[name]] for name, lora in requested.items()}

    def encoder_adapters(self, pipeline: Any, active: Mapping[str, Lora]) -> Hashable:
        """Return the adapters that change the embeddings of prompts, by name, weight and hash of the file."""
        parts = pipeline.get_list_adapters()
        encoders = list(adapted_components(pipeline))[1:]
        names = {name for part in encoders for name in parts.get(part, ())}
        hashes = {name: self._hashes.known[version] for name, version in self._loaded.items()}
        return tuple((name, lora.weight, hashes.get(name)) for name, lora in active.items() if name in names)

    def _load(self, pipeline: Any, path: Path, name: str) -> None:
        """Load a file, again if it is replaced meanwhile. Raises CheckpointError."""
        for _ in range(ATTEMPTS):
            version = FileVersion.find(path)
            if version is None:
                break
            self._load_version(pipeline, version, name)
            if self._hashes.find(version) is not None and FileVersion.find(path) == version:
                self._loaded[name] = version
                return
            pipeline.delete_adapters([name])
        raise CheckpointError("there is no such file, or it is being replaced: try again")

    def _load_version(self, pipeline: Any, version: FileVersion, name: str) -> None:
        known = self.known.get(version)
        if isinstance(known, str):
            raise CheckpointError(known)
        if known is not None:
            load_adapter(pipeline, version.path, name, proved=True)
            return
        components = adapted_components(pipeline)
        before = base_state(components)
        try:
            found: AdapterFit | str = load_adapter(pipeline, version.path, name)
        except CheckpointError as error:
            found = str(error)
        if differing := changed(before, base_state(components)):
            found, self.weights_modified = replaces_weights(differing), True
        if FileVersion.find(version.path) == version:
            self.known[version] = found
        if isinstance(found, str):
            raise CheckpointError(found)
