"""A checkpoint's class, parts and capabilities, from its configs and the headers of its files: no weights are read,
nothing is imported, so it takes a fraction of a second."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.checkpoints.classes.facts import UPSCALES, read_class
from pipelines.checkpoints.classes.index import class_of, component_names, denoiser_name, missing_part
from pipelines.checkpoints.errors import BrokenFile, CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.folder.libraries import missing_libraries, quantization_problems
from pipelines.checkpoints.folder.problems import part_problems
from pipelines.checkpoints.inspection.beside_folders import inspect_file, size_mismatch
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.header import Tensor
from pipelines.checkpoints.weight_file.layout import missing_parts
from pipelines.checkpoints.weight_file.sampling import FileSampling
from pipelines.families.generic import Call
from pipelines.protocol.images import Conditioning
from pipelines.protocol.messages import Capabilities


@dataclass(frozen=True, slots=True)
class Part:
    """A component: its class, and the facts in the headers of its files."""

    name: str
    class_name: str
    weights: int
    bytes: int  # of its files
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, name: str, class_name: str, tensors: Iterable[Tensor]) -> "Part":
        """Return the part that has these tensors."""
        listed = list(tensors)
        weights, size = sum(tensor.weights for tensor in listed), sum(tensor.bytes for tensor in listed)
        return cls(name, class_name, weights, size, tuple(sorted({tensor.dtype for tensor in listed})))


@dataclass(frozen=True, slots=True)
class Inspection:
    """The facts about a checkpoint by its files. With `problems` it can't be served as it is."""

    files: CheckpointFiles
    class_name: str | None
    parts: tuple[Part, ...]
    problems: tuple[str, ...]
    conditioning: Conditioning
    capabilities: Capabilities | None  # as the classes announce them; warmup tries them
    index: Mapping[str, Any]  # model_index.json
    signature: Call = field(default_factory=dict)  # of the pipeline's call; empty if the class is not known
    variants: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # libraries that are not installed
    file_sampling: FileSampling = field(default_factory=FileSampling)  # by a single file, of how it is sampled
    notes: tuple[str, ...] = ()  # what of a file is not used

    @property
    def path(self) -> Path:
        """Return the path of the checkpoint: of a hub cache folder, that of its snapshot."""
        return self.files.path

    @property
    def folder(self) -> Path | None:
        """Return the folder with model_index.json: the checkpoint itself, its base, or its configs."""
        return self.files.folder.path if self.files.folder is not None else None

    @property
    def base(self) -> Path | None:
        """Return the folder with the other parts of a single file that has the denoiser alone."""
        return self.folder if self.files.file is not None and self.files.is_base else None

    @property
    def config(self) -> Path | None:
        """Return the folder with the configs of a single file that has all components."""
        return self.folder if self.files.file is not None and not self.files.is_base else None

    @property
    def weights(self) -> int:
        """Return how many weights all parts have together."""
        return sum(part.weights for part in self.parts)

    def config_of(self, part: str) -> Mapping[str, Any]:
        """Return the config of a component; empty without one."""
        return self.files.folder.config(part) if self.files.folder is not None else {}

    @property
    def denoiser_config(self) -> Mapping[str, Any]:
        """Return the config of the component that runs at every step."""
        return self.config_of(denoiser_name(self.index))

    def device_bytes(self, item_bytes: int) -> int:
        """Return the bytes of the weights on a device at `item_bytes` a weight; GGUF stays as it is in the file."""
        is_gguf = self.path.suffix == ".gguf"
        name = denoiser_name(self.index)
        return sum(part.bytes if is_gguf and part.name == name else part.weights * item_bytes for part in self.parts)


def inspect_checkpoint(files: CheckpointFiles) -> Inspection:
    """Return the facts about a checkpoint. Raises nothing: faults are in `problems`."""
    if files.file is not None and files.folder is None and files.file.upscaler is not None:
        return _of_upscaler(files, files.file)
    problems: list[str] = []
    index, folder = _index(files, problems), files.folder
    parts = tuple(_parts(files, index, problems))
    file_sampling, notes = _of_file(files, index, problems)
    configs = (folder.config("vae"), folder.config(denoiser_name(index))) if folder is not None else ({}, {})
    of_class = read_class(index, folder.path if folder is not None else None, *configs)
    problems += of_class.problems
    problems += quantization_problems(folder, index) if folder is not None else ()
    needs = missing_libraries(files.path, folder, index)
    if index and not problems and not files.has_all:
        try:
            files.find_variant()
        except CheckpointError as error:
            problems.append(str(error))
    return Inspection(
        files=files,
        class_name=index.get("_class_name"),
        parts=parts,
        problems=tuple(dict.fromkeys(problems)),
        conditioning=of_class.conditioning,
        capabilities=of_class.capabilities,
        index=index,
        signature=of_class.call,
        variants=folder.variants(index) if folder is not None else (),
        needs=needs,
        file_sampling=file_sampling,
        notes=notes,
    )


def _of_upscaler(files: CheckpointFiles, file: WeightFile) -> Inspection:
    layout = files.upscaler
    problems = [f"{file.path}: {layout.problem}"] if layout.problem is not None else []
    problems += filter(None, [file.quantization.problem])
    network = Part.of("unet", f"{layout.network}, {layout.scale}x", file.tensors)
    return Inspection(files, layout.network, (network,), tuple(problems), "upscale", UPSCALES, layout.index)


def _index(files: CheckpointFiles, problems: list[str]) -> dict[str, Any]:
    try:
        return files.checked_folder.index
    except CheckpointError as error:
        lacks_config = files.folder is None and files.file is not None and files.file.has_other_components
        problems.append(f"{files.path}: a whole checkpoint, which needs `config`" if lacks_config else str(error))
        return {}


def _parts(files: CheckpointFiles, index: dict[str, Any], problems: list[str]) -> Iterator[Part]:
    denoiser, folder = denoiser_name(index), files.folder
    tensors: list[Tensor] = []
    if files.file is not None and files.file.is_single:
        tensors = _tensors([files.file], problems)
        yield _part_of_file(files, files.file, index, tensors)
    if folder is None:
        return
    of_folder = missing_parts(index, tensors, denoiser) if files.has_all else ()
    for name in component_names(index):
        if name == denoiser and files.file is not None and not files.has_all:
            continue
        if not (folder.path / name).is_dir():
            problems.append(missing_part(folder.path, name))
        elif name in of_folder or not files.has_all:  # others' weights, if there are any, are not loaded
            found, lacking = folder.files(name), f"{files.path} has no {name}; " if files.has_all else ""
            of_part = part_problems(folder.path / name, index[name], [file.path for file in found])
            problems += (f"{lacking}{problem}" for problem in of_part)
            yield Part.of(name, class_of(index[name]), _tensors(found, problems))


def _part_of_file(files: CheckpointFiles, file: WeightFile, index: Mapping[str, Any], tensors: list[Tensor]) -> Part:
    if files.has_all or (files.folder is None and file.path.suffix == ".safetensors" and tensors and file.others):
        return Part.of("all components", "of a single file", tensors)
    denoiser = denoiser_name(index)
    alone = file.denoiser if files.is_base and tensors else tensors  # the others are its base's
    return Part.of(denoiser, class_of(index.get(denoiser)) or "of a single file", alone)


def _tensors(files: Iterable[WeightFile], problems: list[str]) -> list[Tensor]:
    tensors: list[Tensor] = []
    for file in files:
        try:
            tensors += file.tensors
        except BrokenFile as error:
            problems.append(str(error))
    return tensors


def _of_file(
    files: CheckpointFiles, index: Mapping[str, Any], problems: list[str]
) -> tuple[FileSampling, tuple[str, ...]]:
    """Return the sampling that a single file names, with notes. What is wrong with the file comes before what is wrong
    with its folder."""
    found: tuple[FileSampling, tuple[str, ...]] = FileSampling(), ()
    try:
        found = inspect_file(files, index)
    except CheckpointError as error:
        problems[:0] = [str(error)] if str(error) not in problems else []
    if files.file is not None and files.folder is not None and files.is_base and not problems:
        problems += filter(None, [size_mismatch(files.file, files.folder)])
    return found
