"""Facts from a checkpoint's files without loading them: whether they are safe to load, its class and size."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.catalog.components import component_names, is_component
from pipelines.catalog.control_problems import control_problem
from pipelines.catalog.file_kinds import (
    DENOISER,
    LANGUAGE_MODEL,
    TEXT_ENCODER,
    VAE,
    FileKind,
    other_kind_of,
)
from pipelines.catalog.file_layout import denoiser_tensors, missing_parts
from pipelines.catalog.file_versions import files_in
from pipelines.catalog.folder_problems import HUB_CACHE, SHARD, other_kind, part_problems, similar_names
from pipelines.catalog.modular import index_file, missing_part, plain_index
from pipelines.catalog.part_configs import differences, other_kind_of_part
from pipelines.catalog.quantization import is_quantized
from pipelines.catalog.quantized_bytes import quantized_bytes
from pipelines.catalog.upscalers import UpscalerLayout, layout_of
from pipelines.catalog.weight_headers import NO_PICKLES, PICKLES, WEIGHT_FILES, BrokenFile, Tensor, read_header
from pipelines.catalog.weight_headers import CheckpointError as CheckpointError
from pipelines.protocol.images import CheckpointSpec, Control, Offload, Quantize, Runtime

SINGLE_FILES = (".safetensors", ".gguf")
VISION = ("vision_model.", "visual_projection.")  # of an image encoder beside one of texts
# model.safetensors, model.fp16.safetensors, model-00001-of-00002.safetensors, model.fp16-00001-of-00002.safetensors
WEIGHTS = re.compile(r"(?P<stem>[^.]+?)(?P<variant>\.[^.]+?)?(-\d{5}-of-\d{5})?\.safetensors")


FITTING: Mapping[str, tuple[FileKind, ...]] = {"vae": (VAE,), "denoiser": (DENOISER,)}  # kinds, by a part's key


def find_snapshot(path: Path) -> Path:
    """Return the folder of files that a hub cache folder (models--x--y) stands for, by its refs: main, or the only one.
    Other paths are returned as they are."""
    if not path.name.startswith(HUB_CACHE) or not (path / "snapshots").is_dir():
        return path
    refs = [path / "refs" / "main", *sorted((path / "refs").glob("*"))]
    named = [path / "snapshots" / ref.read_text().strip() for ref in refs if ref.is_file()]
    return next((folder for folder in [*named, *sorted((path / "snapshots").iterdir())] if folder.is_dir()), path)


def index_of(spec: CheckpointSpec) -> dict[str, Any]:
    """Return the index of a checkpoint: model_index.json of its folder, or one that is made for an upscaler's file.
    Raises CheckpointError."""
    return upscaler_of(spec).index if spec.conditioning == "upscale" else model_index(check_files(spec))


def upscaler_of(spec: CheckpointSpec) -> UpscalerLayout:
    """Return the layout of an upscaler's file. Raises CheckpointError for a file that is no upscaler."""
    _check_path(spec.path)
    layout = layout_of(spec.path) if spec.path.suffix == ".safetensors" and spec.path.is_file() else None
    kind = other_kind_of(spec.path) if layout is None and spec.path.suffix in SINGLE_FILES else None
    if layout is None:
        raise CheckpointError(f"{spec.path}: {kind if kind is not None else 'no upscaler in one .safetensors file'}")
    return layout


def _check_path(path: Path) -> None:
    """Raise CheckpointError for a path that can't be read, and for a pickle."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise CheckpointError(f"{path}: there is no such checkpoint{similar_names(path)}") from error
    except OSError as error:  # such as a name that is too long, or a folder that may not be entered
        raise CheckpointError(f"{str(path)[:200]}: {error.strerror}") from error
    if path.is_file() and any(path.match(pattern) for pattern in PICKLES):
        raise CheckpointError(f"{path}: {NO_PICKLES}")


def check_files(spec: CheckpointSpec) -> Path:
    """Return the folder with model_index.json, after the checks that need no loading. Raises CheckpointError."""
    _check_path(spec.path)
    folder = spec.path if spec.path.is_dir() else spec.base or spec.config
    if folder is None and spec.path.suffix in SINGLE_FILES and (kind := other_kind_of(spec.path)) is not None:
        raise CheckpointError(f"{spec.path}: {kind}")
    if spec.path.is_file() and (why := _why_no_single_file(spec.path)) is not None:
        raise CheckpointError(f"{spec.path}: {why}")
    if folder is None or (spec.path.is_file() and spec.path.suffix not in SINGLE_FILES):
        raise CheckpointError(
            f"{spec.path}: neither a diffusers folder, nor a .safetensors or .gguf file with `base` (the folder that "
            "has the other parts), nor a whole .safetensors file with `config`"
        )
    if not index_file(folder).is_file():
        raise CheckpointError(other_kind(folder))
    files = files_in(folder)
    if code := next((file for file in files if file.suffix == ".py"), None):
        raise CheckpointError(f"{code}: checkpoints may not bring code; remove it if the pipeline works without")
    if spec.path.is_dir() and not any(file.match(WEIGHT_FILES) for file in files):
        pickled = next((file for pattern in PICKLES for file in files if file.match(pattern)), None)
        content = f"only pickles such as {pickled.name}, which can run code" if pickled else "no weights"
        raise CheckpointError(f"{folder}: {content}; convert the checkpoint to safetensors")
    return folder


def _why_no_single_file(file: Path) -> str | None:
    """Return why a file can't be a single-file checkpoint, by its name: it is one of several shards, or has another
    ending."""
    if SHARD.search(file.name):
        return "one of several files of a model: name their folder, with the key `denoiser` if it is a denoiser's"
    try:
        is_named_otherwise = file.suffix not in SINGLE_FILES and bool(read_header(file).tensors)
    except BrokenFile:
        return None
    return f"a .safetensors file under another name: call it {file.stem}.safetensors" if is_named_otherwise else None


def model_index(folder: Path) -> dict[str, Any]:
    """Read model_index.json, or the index of a modular pipeline: the pipeline's class, and [library, class] of each
    component. Raises CheckpointError."""
    path = index_file(folder)
    try:
        index: dict[str, Any] = json.loads(path.read_text())
        name = index["_class_name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: no _class_name can be read from it") from error
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: _class_name names code of the checkpoint's own, which is not run")
    return plain_index(index)


def denoiser_name(index: dict[str, Any]) -> str:
    """Return the name of the component that runs at every step."""
    return "unet" if "unet" in index else "transformer"


def class_of(entry: Any) -> str:
    """Return the class that model_index.json has for a component; an empty text for another entry."""
    return str(entry[1]) if isinstance(entry, list) and len(entry) > 1 else ""


def read_config(folder: Path, part: str) -> dict[str, Any]:
    """Read a component's config: config.json, or scheduler_config.json of a scheduler."""
    return read_json(folder / part / "config.json") or read_json(folder / part / f"{part}_config.json")


def read_json(file: Path) -> dict[str, Any]:
    """Read a config file. It is empty if there is no file that can be read."""
    try:
        content = json.loads(file.read_text()) if file.is_file() else {}  # a pipe would be waited for
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def is_text_encoder(component: str) -> bool:
    """Return whether a component reads prompts: text_encoder, text_encoder_2, ..."""
    return component.startswith("text_encoder")


def weight_files(spec: CheckpointSpec) -> dict[str, list[Path]]:
    """Return the files with weights that diffusers loads, by component. A single file counts as the denoiser.

    Raises CheckpointError.
    """
    index = index_of(spec)
    denoiser = {denoiser_name(index): [spec.path]} if spec.path.is_file() else {}
    folder = spec.path if spec.path.is_dir() else spec.base or spec.config
    if folder is None:
        return denoiser
    parts = [part for part in component_names(index) if part not in denoiser]
    if folder == spec.config:
        parts = list(missing_parts(index, read_header(spec.path).tensors, denoiser_name(index)))
    own = own_parts(spec.parts, index)
    if missing := [part for part in parts if part not in own and not (folder / part).is_dir()]:
        raise CheckpointError(missing_part(folder, missing[0]))
    for part, path in own.items():
        changed = differences(read_json(path / "config.json"), read_json(folder / part / "config.json"), folder / part)
        if problem := next(changed, None):
            raise CheckpointError(f"{part}: {path}: {problem}")
    found = {part: default_variant(folder / part) for part in parts}
    for part, files in found.items():
        if part in own:
            continue
        if problem := next(part_problems(folder / part, index[part], files), None):
            raise CheckpointError(f"{spec.path} has no {part}; {problem}" if folder == spec.config else problem)
    found = {part: files for part, files in (denoiser | found).items() if files}
    return found | {part: own_files(path) for part, path in own.items()}


def own_parts(parts: Iterable[tuple[str, Path]], index: Mapping[str, Any]) -> dict[str, Path]:
    """Return the paths of a catalog file's own parts, by the component that each replaces. Raises CheckpointError."""
    found = {}
    for key, path in parts:
        name = denoiser_name(dict(index)) if key == "denoiser" else key
        if not is_component(index.get(name)):
            raise CheckpointError(f"{key}: {index.get('_class_name')} has no {name}")
        found[name] = _own_part(key, path, name, index)
    return found


def own_files(path: Path) -> list[Path]:
    """Return the weight files of a component that the catalog file puts in place of the checkpoint's own: of its
    folder, or the file itself."""
    return default_variant(path) if path.is_dir() else [path]


def _own_part(key: str, path: Path, name: str, index: Mapping[str, Any]) -> Path:
    """Return the folder or file of a part; of a whole checkpoint's folder, that of its part of this name."""
    if not path.exists():
        raise CheckpointError(f"{key}: {path}: there is no such folder or file{similar_names(path)}")
    if (path / "model_index.json").is_file():
        path = path / name
    if path.is_dir():
        config = read_json(path / "config.json")
        if (other := other_kind_of_part(config, FITTING.get(key, (TEXT_ENCODER, LANGUAGE_MODEL)))) is not None:
            raise CheckpointError(f"{key}: {path}: {other}")
        class_name = str(config.get("_class_name") or index[name][1] or "")
        if key == "denoiser" and class_name != index[name][1]:
            raise CheckpointError(f"{key}: {path}: a {class_name}, and the pipeline draws with a {index[name][1]}")
        if problem := next(part_problems(path, [str(index[name][0]), class_name], default_variant(path)), None):
            raise CheckpointError(f"{key}: {problem}")
        return path
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{key}: {path}: neither a folder nor a .safetensors file")
    try:
        kind = other_kind_of(path)
    except BrokenFile as error:
        raise CheckpointError(f"{key}: {error}") from error
    if kind is not None and kind not in FITTING.get(key, (TEXT_ENCODER, LANGUAGE_MODEL)):
        raise CheckpointError(f"{key}: {path}: {kind}")
    return path


def find_variant(spec: CheckpointSpec) -> str | None:
    """Return the variant to load, such as "fp16", of a folder in which some component has no plain files. Else None.

    Raises CheckpointError where there are several to choose from.
    """
    of_others = {file for path in own_parts(spec.parts, index_of(spec)).values() for file in own_files(path)}
    parts = [
        [WEIGHTS.fullmatch(file.name) for file in files if file != spec.path and file not in of_others]
        for files in weight_files(spec).values()
    ]
    variants = [{match["variant"] for match in part if match} for part in parts]
    lacking = [{variant[1:] for variant in part} for part in variants if part and None not in part]
    if not lacking:
        return None
    common = set.intersection(*lacking)
    if len(common) != 1:
        found = ", ".join(sorted(set.union(*lacking)))
        folder = spec.path if spec.path.is_dir() else spec.base
        raise CheckpointError(f"{folder}: some components have no plain weights but the variants {found}; keep one")
    return common.pop()


def estimate_bytes(spec: CheckpointSpec, item_bytes: int) -> int:
    """Estimate the bytes of the weights on the device at `item_bytes` a weight, from the headers of their files.

    Raises CheckpointError for files that can't be loaded.
    """
    quantize = "float8" if stored_as_float8(spec) else spec.runtime.quantize
    sizes = component_bytes(spec, item_bytes, quantize)
    if spec.runtime.parallel == "tensor":
        denoiser = denoiser_name(index_of(spec))
        sizes[denoiser] = [size / spec.runtime.gpus for size in sizes[denoiser]]
    return fullest_device_bytes(sizes, spec.runtime) + control_bytes(spec.controls, item_bytes)


def control_bytes(controls: Iterable[Control], item_bytes: int) -> int:
    """Return the bytes of the controls' networks and their image encoders on the device at `item_bytes` a weight.
    Raises CheckpointError for files that can't be loaded."""
    networks = [control for control in controls if control.kind != "map"]
    for control in networks:
        if (problem := control_problem(control, read_json(control.path / "config.json"))) is not None:
            raise CheckpointError(problem)
    paths = {path: None for control in networks for path in (control.path, control.image_encoder) if path is not None}
    weights = 0
    for path in paths:
        files = default_variant(path) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise CheckpointError(f"{path}: there is no such file, or no .safetensors file in it")
        tensors = [tensor for file in files for tensor in read_header(file).tensors]
        seeing = [tensor for tensor in tensors if tensor.name.startswith(VISION)]
        weights += sum(tensor.weights for tensor in seeing or tensors)  # of a whole CLIP, the image encoder alone
    return weights * item_bytes


def stored_as_float8(spec: CheckpointSpec) -> bool:
    """Return whether the denoiser is a single file of float8 weights, which stay so on the device unless [runtime] has
    another `quantize`. Weights with scales beside them are multiplied out as they are read."""
    if spec.runtime.quantize != "none" or spec.path.suffix != ".safetensors" or spec.base is None:
        return False
    tensors = denoiser_tensors(read_header(spec.path).tensors)
    float8 = sum(tensor.weights for tensor in tensors if tensor.dtype.startswith("F8"))
    return not is_quantized(spec.path, denoiser_alone=True) and 2 * float8 > sum(tensor.weights for tensor in tensors)


def component_bytes(spec: CheckpointSpec, item_bytes: int, quantize: Quantize) -> dict[str, list[float]]:
    """Return the bytes of each component's tensors at `item_bytes` a weight, with the denoiser quantized. Raises
    CheckpointError for files that can't be loaded."""
    denoiser = denoiser_name(index_of(spec))
    found = {
        part: [(tensor, file) for file in files for tensor in read_header(file).tensors]
        for part, files in weight_files(spec).items()
    }
    if spec.base is not None:  # other components in the file are not loaded
        own = set(denoiser_tensors(tensor for tensor, _ in found[denoiser]))
        found[denoiser] = [(tensor, file) for tensor, file in found[denoiser] if tensor in own]
    return {
        part: [
            _loaded_bytes(tensor, file, quantize if part == denoiser else "none", item_bytes)
            for tensor, file in tensors
        ]
        for part, tensors in found.items()
    }


def _loaded_bytes(tensor: Tensor, file: Path, quantize: Quantize, item_bytes: float) -> float:
    """Return a tensor's bytes once loaded. A GGUF file's tensors stay as they are in the file."""
    return tensor.bytes if file.suffix == ".gguf" else quantized_bytes(tensor, quantize, item_bytes)


def fullest_device_bytes(parts: Mapping[str, Sequence[float]], runtime: Runtime) -> int:
    """Return the peak in bytes that a checkpoint takes on a device; with the text encoders on a device of their own, on
    the one of the two that holds more."""
    if runtime.gpus == 1 or runtime.parallel != "encoders":
        return device_bytes(parts, runtime.offload)
    return max(device_bytes(side, runtime.offload) for side in _encoders_and_others(parts))


def device_bytes(parts: Mapping[str, Sequence[float]], offload: Offload) -> int:
    """Return the peak on the device in bytes, for components with tensors of these sizes."""
    total = sum(sum(tensors) for tensors in parts.values())
    match offload:
        case "none":
            return int(total)
        case "encoders":
            encoders, others = _encoders_and_others(parts)
            return device_bytes(encoders, "group") + device_bytes(others, "none")
        case "model":  # one component at a time
            return int(max((sum(tensors) for tensors in parts.values()), default=0))
        case "group":  # one layer runs while the next one is copied
            return int(min(total, 2 * max((size for tensors in parts.values() for size in tensors), default=0)))


def _encoders_and_others(parts: Mapping[str, Sequence[float]]) -> list[dict[str, Sequence[float]]]:
    return [{name: part for name, part in parts.items() if is_text_encoder(name) == side} for side in (True, False)]


def default_variant(folder: Path) -> list[Path]:
    """Return a component's files, without variants such as fp16 of files that are also there without one."""
    matches = [(file, WEIGHTS.fullmatch(file.name)) for file in sorted(folder.glob(WEIGHT_FILES))]
    default = {match["stem"] for _, match in matches if match and not match["variant"]}
    return [file for file, match in matches if not (match and match["variant"] and match["stem"] in default)]


def single_variant(folder: Path) -> str | None:
    """Return the variant of a folder's weights, such as "fp16", if all of them are of one."""
    matches = [WEIGHTS.fullmatch(file.name) for file in folder.glob(WEIGHT_FILES)]
    variants = {match["variant"] for match in matches if match}
    only = variants.pop() if len(variants) == 1 else None
    return only[1:] if only else None
