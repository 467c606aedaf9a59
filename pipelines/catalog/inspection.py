"""A checkpoint's class, parts and capabilities, from its configs and the headers of its files: no weights are read,
nothing is imported, so it takes a fraction of a second."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines.catalog.base_search import has_other_components, size_mismatch
from pipelines.catalog.call_signature import UPSCALES, PipelineSource, declared_capabilities
from pipelines.catalog.channels import draws_alpha
from pipelines.catalog.checkpoint_files import (
    SINGLE_FILES,
    WEIGHTS,
    CheckpointError,
    check_files,
    class_of,
    default_variant,
    denoiser_name,
    find_snapshot,
    find_variant,
    model_index,
    read_config,
    read_json,
)
from pipelines.catalog.components import component_names, is_known, is_left_out
from pipelines.catalog.conditioning import MODES
from pipelines.catalog.file_layout import component_prefixes, denoiser_tensors, missing_parts
from pipelines.catalog.file_sampling import FileSampling
from pipelines.catalog.folder_problems import part_problems
from pipelines.catalog.libraries import missing_libraries, quantization_problems
from pipelines.catalog.modular import missing_part, modular_class
from pipelines.catalog.quantization import read_quantization
from pipelines.catalog.refused_classes import DENOISERS, why_refused
from pipelines.catalog.single_files import inspect_file
from pipelines.catalog.upscalers import UpscalerLayout, layout_of
from pipelines.catalog.weight_headers import WEIGHT_FILES, BrokenFile, Tensor, read_header
from pipelines.families.generic import Call
from pipelines.families.registry import family_of
from pipelines.families.task import Task
from pipelines.protocol.images import CheckpointSpec, Conditioning
from pipelines.protocol.messages import Capabilities

OWN_LIBRARIES = ("diffusers", "transformers")


@dataclass(frozen=True, slots=True)
class Part:
    """A component: its class, and the facts in the headers of its files."""

    name: str
    class_name: str
    weights: int
    bytes: int  # of its files
    dtypes: tuple[str, ...]
    largest_weights: int  # of its largest tensor


@dataclass(frozen=True, slots=True)
class Inspection:
    """The facts about a checkpoint by its files. With `problems` it can't be served as it is."""

    path: Path  # a hub cache folder's snapshot
    folder: Path | None  # with model_index.json: the checkpoint itself, its base, or its configs
    base: Path | None  # of a single file that has the denoiser alone
    config: Path | None  # of a single file that has all components
    class_name: str | None
    parts: tuple[Part, ...]
    variants: tuple[str, ...]
    problems: tuple[str, ...]
    needs: tuple[str, ...]  # libraries that are not installed
    conditioning: Conditioning
    capabilities: Capabilities | None  # as the classes announce them; warmup tries them
    signature: Call  # of the pipeline's call; empty if the class is not known
    index: Mapping[str, Any]  # model_index.json
    denoiser_config: Mapping[str, Any]
    file_sampling: FileSampling = field(default_factory=FileSampling)  # by a single file, of how it is sampled
    notes: tuple[str, ...] = ()  # what of a file is not used

    @property
    def weights(self) -> int:
        """Return how many weights all parts have together."""
        return sum(part.weights for part in self.parts)

    def device_bytes(self, item_bytes: int) -> int:
        """Return the bytes of the weights on a device at `item_bytes` a weight; GGUF stays as it is in the file."""
        is_gguf = self.path.suffix == ".gguf"
        name = denoiser_name(dict(self.index))
        return sum(part.bytes if is_gguf and part.name == name else part.weights * item_bytes for part in self.parts)


def inspect_checkpoint(path: Path, base: Path | None = None, config: Path | None = None) -> Inspection:
    """Return the facts about a diffusers folder, a hub cache folder or a single file. `base` is the folder with the
    other components of a single file that has the denoiser alone, `config` that of the configs of one that has all.
    Raises nothing: faults are in `problems`."""
    if path.suffix == ".safetensors" and path.is_file() and base is None and config is None:
        try:
            if (layout := layout_of(path)) is not None:
                return _of_upscaler(path, layout)
        except BrokenFile:
            pass  # found again below
    source = PipelineSource()
    path, base, config = find_snapshot(path), base and find_snapshot(base), config and find_snapshot(config)
    folder = path if path.is_dir() else base or config
    problems: list[str] = []
    index: dict[str, Any] = {}
    spec = CheckpointSpec(path.name, path, config, "", "img2img", 1, base=base)
    try:
        index = model_index(check_files(spec))
    except CheckpointError as error:
        lacks_config = folder is None and has_other_components(path)
        problems.append(f"{path}: a whole checkpoint, which needs `config`" if lacks_config else str(error))
    class_name = index.get("_class_name")
    parts = tuple(_parts(path, folder, index, problems, is_config=folder is not None and folder == config))
    file_sampling: FileSampling = FileSampling()
    notes: tuple[str, ...] = ()
    if path.is_file():
        try:
            file_sampling, notes = inspect_file(
                path, folder, index, source, is_base=folder is not None and folder == base
            )
        except CheckpointError as error:
            problems[:0] = [str(error)] if str(error) not in problems else []
        if not problems and base is not None and (why := size_mismatch(path, base)) is not None:
            problems.append(why)
    modular = modular_class(source.folder, class_name) if class_name else None
    signature = source.parameters(class_name) if class_name and modular is None else None
    signature = modular.inputs if modular is not None else signature
    if class_name and signature is None:
        problems.append(f"{folder}: the installed diffusers has no pipeline {class_name}")
    problems += class_problems(index, folder, source)
    problems += quantization_problems(folder, index) if folder is not None else ()
    if index and not problems and folder != config:
        problems += _of_variants(spec)
    denoiser_config = read_json(folder / denoiser_name(index) / "config.json") if folder else {}
    codec = read_config(folder, "vae") if folder else {}
    tasks = modular.tasks if modular is not None else _tasks(class_name or "", signature or {}, codec, source)
    conditioning: Conditioning = "native" if Task.NATIVE in tasks else "img2img"
    capabilities = None
    if class_name and signature:
        spec = CheckpointSpec("", path, None, "", conditioning, MODES[conditioning].max_references)
        announced = declared_capabilities(family_of(class_name), signature, tasks, spec, index, denoiser_config)
        capabilities = replace(announced, transparent=draws_alpha(codec))
    return Inspection(
        path=path,
        folder=folder,
        base=base if path.is_file() else None,
        config=config if path.is_file() else None,
        class_name=class_name,
        parts=parts,
        variants=_variants(folder, index),
        problems=tuple(dict.fromkeys(problems)),
        needs=missing_libraries(path, folder, index),
        conditioning=conditioning,
        capabilities=capabilities,
        signature=signature or {},
        index=index,
        denoiser_config=denoiser_config,
        file_sampling=file_sampling,
        notes=notes,
    )


def _of_upscaler(path: Path, layout: UpscalerLayout) -> Inspection:
    network = _part("unet", f"{layout.network}, {layout.scale}x", list(read_header(path).tensors))
    problems = [f"{path}: {layout.problem}"] if layout.problem is not None else []
    problems += filter(None, [read_quantization(path).problem])
    return Inspection(
        path,
        None,
        None,
        None,
        layout.network,
        (network,),
        (),
        tuple(problems),
        (),
        "upscale",
        UPSCALES,
        {},
        layout.index,
        {},
    )


def _parts(
    path: Path, folder: Path | None, index: dict[str, Any], problems: list[str], *, is_config: bool
) -> Iterator[Part]:
    denoiser = denoiser_name(index)
    tensors: list[Tensor] = []
    if path.suffix in SINGLE_FILES and path.is_file():
        tensors = _read([path], problems)
        if is_config or (folder is None and path.suffix == ".safetensors" and component_prefixes(tensors)):
            denoiser = "all components"
        elif folder is not None:
            tensors = denoiser_tensors(tensors)  # the others are its base's
        yield _part(denoiser, class_of(index.get(denoiser)) or "of a single file", tensors)
    if folder is None:
        return
    of_folder = missing_parts(index, tensors, denoiser_name(index)) if is_config else ()
    for name in component_names(index):
        if name == denoiser and path.is_file():
            continue
        if not (folder / name).is_dir():
            problems.append(missing_part(folder, name))
            continue
        if is_config and name not in of_folder:
            continue  # its weights, if there are any, are not loaded
        files = default_variant(folder / name)
        class_name = class_of(index[name])
        lacking = f"{path} has no {name}; " if name in of_folder else ""
        problems += (f"{lacking}{problem}" for problem in part_problems(folder / name, index[name], files))
        yield _part(name, class_name, _read(files, problems))


def _read(files: Iterable[Path], problems: list[str]) -> list[Tensor]:
    tensors: list[Tensor] = []
    for file in files:
        try:
            tensors += read_header(file).tensors
        except BrokenFile as error:
            problems.append(str(error))
    return tensors


def _part(name: str, class_name: str, tensors: list[Tensor]) -> Part:
    return Part(
        name=name,
        class_name=class_name,
        weights=sum(tensor.weights for tensor in tensors),
        bytes=sum(tensor.bytes for tensor in tensors),
        dtypes=tuple(sorted({tensor.dtype for tensor in tensors})),
        largest_weights=max((tensor.weights for tensor in tensors), default=0),
    )


def class_problems(index: Mapping[str, Any], folder: Path | None, source: PipelineSource) -> Iterator[str]:
    """Yield messages about what keeps the pipeline class from being built of the components that the index names."""
    class_name = str(index.get("_class_name"))
    why = why_refused(class_name, source) if index else None
    problems = [f"{folder}: {why}"] if why is not None else []
    problems += _foreign_parts(index, folder, source)
    yield from problems or _absent_parts(index, folder, source)


def _foreign_parts(index: Mapping[str, Any], folder: Path | None, source: PipelineSource) -> Iterator[str]:
    """Yield the components that can't be loaded, as messages: those of libraries and classes that are not here, and
    nulls. A folder of diffusers' own pipelines may be a library too."""
    components = source.components(str(index.get("_class_name")))
    for name in (name for name, entry in index.items() if entry is None and name in components):
        yield f"{folder}/model_index.json: {name} is null, which diffusers does not read: write [null, null]"
    for name in component_names(index):
        library = index[name][0]
        own = source.folder is not None and (source.folder / "pipelines" / str(library)).is_dir()
        if library not in OWN_LIBRARIES and library is not None and not own:
            yield f"{folder}: {name} is of the library {library}, whose code is not loaded"
        elif not is_known(str(library), class_of(index[name])):
            class_name = class_of(index[name])
            yield f"{folder}: {name} is of the class {class_name}, which the installed diffusers does not have"


def _absent_parts(index: Mapping[str, Any], folder: Path | None, source: PipelineSource) -> Iterator[str]:
    """Yield the components without which the pipeline's class does nothing, as messages. Of those that are left out on
    purpose, and so passed as None, that is the denoiser: SD3 draws without its T5."""
    class_name = str(index.get("_class_name"))
    for name in sorted(source.required_components(class_name)):
        if name not in index or (is_left_out(index[name]) and name in DENOISERS):
            named = "leaves out" if name in index else "does not name"
            yield f"{folder}/model_index.json {named} {name}, which {class_name} needs"


def _of_variants(spec: CheckpointSpec) -> Iterator[str]:
    try:
        find_variant(spec)
    except CheckpointError as error:
        yield str(error)


def _variants(folder: Path | None, index: Mapping[str, Any]) -> tuple[str, ...]:
    names = component_names(index) if folder else []
    files = [file for name in names if folder for file in (folder / name).glob(WEIGHT_FILES)]
    matches = [WEIGHTS.fullmatch(file.name) for file in files]
    return tuple(sorted({match["variant"][1:] for match in matches if match and match["variant"]}))


def _tasks(class_name: str, signature: Call, codec: Mapping[str, Any], source: PipelineSource) -> frozenset[Task]:
    """Return the tasks that a class and its siblings draw. A codec with means has latents of another scale, at which no
    image can start late."""
    methods = source.methods(class_name) if codec.get("latents_mean") is None else ()
    return frozenset(family_of(class_name).drawn_by(class_name, signature, methods, source.has))


def codec_scale(folder: Path) -> int:
    """Return how many pixels a latent has along a side, computed from the codec's config as diffusers' pipelines do; 8
    if it does not say."""
    config = read_config(folder, "vae")
    for key in ("block_out_channels", "encoder_block_out_channels"):
        if isinstance(blocks := config.get(key), list):
            return int(2 ** (len(blocks) - 1))
    doublings = config.get("temperal_downsample")  # sic, of video codecs
    return int(2 ** len(doublings)) if isinstance(doublings, list) else 8
