"""The files of a checkpoint as a catalog file names them: whether they are safe to load, what each part is loaded from,
and the bytes that it takes."""

import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.checkpoints.classes.index import component_names, denoiser_name, index_file, missing_part
from pipelines.checkpoints.errors import BrokenFile, CheckpointError
from pipelines.checkpoints.folder.folder import WEIGHTS, CheckpointFolder, read_json
from pipelines.checkpoints.folder.own_parts import differences, own_files, own_parts
from pipelines.checkpoints.folder.problems import SHARD, other_kind, part_problems, similar_names
from pipelines.checkpoints.folder.versions import files_in
from pipelines.checkpoints.weight_file.file import SINGLE_FILES, WeightFile
from pipelines.checkpoints.weight_file.header import NO_PICKLES, PICKLES, WEIGHT_FILES
from pipelines.checkpoints.weight_file.kinds import FileKind
from pipelines.checkpoints.weight_file.layout import missing_parts
from pipelines.checkpoints.weight_file.upscalers import UpscalerLayout
from pipelines.protocol.images import CheckpointSpec


@dataclass(frozen=True)
class CheckpointFiles:
    """A diffusers folder; or one file of weights, with the folder that has its other parts (`is_base`) or the configs
    of its own. What is read stays as long as this object."""

    path: Path
    file: WeightFile | None = None
    folder: CheckpointFolder | None = None
    is_base: bool = False
    upscales: bool = False
    own: Iterable[tuple[str, Path]] = ()  # parts that the catalog file names, by their keys

    @classmethod
    def at(cls, path: Path, base: Path | None = None, config: Path | None = None) -> "CheckpointFiles":
        """Open the checkpoint at a path, with `base` or `config` beside a single file. Raises nothing."""
        beside = base or config
        try:
            mode = path.stat().st_mode
        except (OSError, ValueError):  # the checks say why
            mode = 0
        if stat.S_ISDIR(mode):
            folder = CheckpointFolder(path)
            return cls(folder.path, folder=folder)
        file = WeightFile(path) if stat.S_ISREG(mode) else None
        return cls(path, file, CheckpointFolder(beside) if beside is not None else None, base is not None)

    @classmethod
    def of(cls, spec: CheckpointSpec) -> "CheckpointFiles":
        """Open the checkpoint of a catalog file. Raises nothing."""
        found = cls.at(spec.path, spec.base, spec.config)
        return replace(found, upscales=spec.conditioning == "upscale", own=spec.parts)

    @property
    def has_all(self) -> bool:
        """Return whether the folder has the configs alone, for a file that has all components."""
        return self.folder is not None and not self.is_base and self.folder.path != self.path

    @cached_property
    def checked_folder(self) -> CheckpointFolder:
        """Return the folder with model_index.json, after the checks that need no loading. Raises CheckpointError."""
        self._check_path()
        if self.folder is None and (kind := self._kind) is not None:
            raise CheckpointError(f"{self.path}: {kind}")
        if self.file is not None and (why := self._why_no_single_file()) is not None:
            raise CheckpointError(f"{self.path}: {why}")
        if self.folder is None or (self.file is not None and not self.file.is_single):
            raise CheckpointError(
                f"{self.path}: neither a diffusers folder, nor a .safetensors or .gguf file with `base` (the folder "
                "that has the other parts), nor a whole .safetensors file with `config`"
            )
        folder = self.folder.path
        if not index_file(folder).is_file():
            raise CheckpointError(other_kind(folder))
        files = files_in(folder)
        if code := next((file for file in files if file.suffix == ".py"), None):
            raise CheckpointError(f"{code}: checkpoints may not bring code; remove it if the pipeline works without")
        if folder == self.path and not any(file.match(WEIGHT_FILES) for file in files):
            pickled = next((file for pattern in PICKLES for file in files if file.match(pattern)), None)
            content = f"only pickles such as {pickled.name}, which can run code" if pickled else "no weights"
            raise CheckpointError(f"{folder}: {content}; convert the checkpoint to safetensors")
        return self.folder

    @property
    def _kind(self) -> FileKind | None:
        """Return the kind of a file that is no image checkpoint. Raises BrokenFile, also for a pipe."""
        return (self.file or WeightFile(self.path)).kind if self.path.suffix in SINGLE_FILES else None

    def _why_no_single_file(self) -> str | None:
        """Return why a file can't be a single-file checkpoint, by its name: it is one of several shards, or has another
        ending."""
        if SHARD.search(self.path.name):
            return "one of several files of a model: name their folder, with the key `denoiser` if it is a denoiser's"
        try:
            is_named_otherwise = self.file is not None and not self.file.is_single and bool(self.file.tensors)
        except BrokenFile:
            return None
        stem = self.path.stem
        return f"a .safetensors file under another name: call it {stem}.safetensors" if is_named_otherwise else None

    def _check_path(self) -> None:
        """Raise CheckpointError for a path that can't be read, and for a pickle."""
        try:
            self.path.stat()
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise CheckpointError(f"{self.path}: there is no such checkpoint{similar_names(self.path)}") from error
        except OSError as error:  # such as a name that is too long, or a folder that may not be entered
            raise CheckpointError(f"{str(self.path)[:200]}: {error.strerror}") from error
        if self.file is not None and any(self.path.match(pattern) for pattern in PICKLES):
            raise CheckpointError(f"{self.path}: {NO_PICKLES}")

    @cached_property
    def upscaler(self) -> UpscalerLayout:
        """Return the layout of an upscaler's file. Raises CheckpointError for a file that is no upscaler."""
        self._check_path()
        if self.file is not None and self.file.upscaler is not None:
            return self.file.upscaler
        kind = self._kind
        raise CheckpointError(f"{self.path}: {kind if kind is not None else 'no upscaler in one .safetensors file'}")

    @property
    def index(self) -> dict[str, Any]:
        """Return the index: model_index.json of the folder, or one that is made for an upscaler's file. Raises
        CheckpointError."""
        return self.upscaler.index if self.upscales else self.checked_folder.index

    @cached_property
    def own_parts(self) -> dict[str, Path]:
        """Return the catalog file's own parts, by the component that each replaces. Raises CheckpointError."""
        return own_parts(self.own, self.index)

    @cached_property
    def weights(self) -> Mapping[str, Sequence[WeightFile]]:
        """Return the files with weights that diffusers loads, by component. A single file counts as the denoiser.
        Raises CheckpointError."""
        index = self.index
        denoiser = {denoiser_name(index): [self.file]} if self.file is not None else {}
        if self.folder is None:
            return denoiser
        parts = [part for part in component_names(index) if part not in denoiser]
        if self.has_all and self.file is not None:
            parts = list(missing_parts(index, self.file.tensors, denoiser_name(index)))
        folder = self.folder.path
        if missing := [part for part in parts if part not in self.own_parts and not (folder / part).is_dir()]:
            raise CheckpointError(missing_part(folder, missing[0]))
        self._check_parts(self.folder, [part for part in parts if part not in self.own_parts])
        found = {part: self.folder.files(part) for part in parts if part not in self.own_parts}
        found = {part: files for part, files in (denoiser | found).items() if files}
        return found | {part: own_files(path) for part, path in self.own_parts.items()}

    def _check_parts(self, folder: CheckpointFolder, parts: Iterable[str]) -> None:
        """Check the parts that are the folder's, and those in place of others. Raises CheckpointError."""
        for part, path in self.own_parts.items():
            changed = differences(read_json(path / "config.json"), folder.config(part), folder.path / part)
            if problem := next(changed, None):
                raise CheckpointError(f"{part}: {path}: {problem}")
        for part in parts:
            files = [file.path for file in folder.files(part)]
            if problem := next(part_problems(folder.path / part, self.index[part], files), None):
                raise CheckpointError(f"{self.path} has no {part}; {problem}" if self.has_all else problem)

    def find_variant(self) -> str | None:
        """Return the variant to load, such as "fp16", of a folder in which some component has no plain files. Else
        None. Raises CheckpointError where there are several to choose from."""
        parts = (files for part, files in self.weights.items() if part not in self.own_parts)
        matches = [[WEIGHTS.fullmatch(file.path.name) for file in files if file is not self.file] for files in parts]
        variants = [{match["variant"] for match in part if match} for part in matches]
        lacking = [part for part in variants if part and None not in part]
        if not lacking:
            return None
        common = set.intersection(*lacking)
        if len(common) != 1:
            found = ", ".join(sorted(set.union(*lacking)))
            folder = self.checked_folder.path
            raise CheckpointError(f"{folder}: some components have no plain weights but the variants {found}; keep one")
        return common.pop()

    @property
    def is_float8(self) -> bool:
        """Return whether the denoiser is a single file of float8 weights, without scales beside them. Raises
        CheckpointError."""
        if self.file is None or self.path.suffix != ".safetensors" or not self.is_base:
            return False
        float8 = sum(tensor.weights for tensor in self.file.denoiser if tensor.dtype.startswith("F8"))
        is_scaled = bool(self.file.denoiser_quantization.scales)
        return not is_scaled and 2 * float8 > sum(tensor.weights for tensor in self.file.denoiser)
