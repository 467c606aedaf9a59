"""ControlNets, T2I-Adapters and image encoders from their folders."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.folder import single_variant
from pipelines.checkpoints.folder.own_parts import CALLED, KEYS
from pipelines.checkpoints.memory.device_bytes import control_bytes
from pipelines.device.failures import is_device_error, is_out_of_memory
from pipelines.device.memory import copy_mapped_weights
from pipelines.device.staged_copy import move_modules
from pipelines.device.weight_names import load_model
from pipelines.images.loading.controls import NETS, Controls
from pipelines.images.loading.file_hashes import FileHashes
from pipelines.protocol.images import CheckpointSpec, Control

ENCODERS = ("VisionModel", "VisionModelWithProjection")  # how the classes of image encoders end
VISION_HALVES = {"CLIPModel": "CLIPVisionModelWithProjection", "SiglipModel": "SiglipVisionModel"}  # of two encoders


def load_controls(
    spec: CheckpointSpec, pipeline_class: type[Any], device: torch.device, dtype: torch.dtype
) -> Controls:
    """Load the networks of a spec's controls to the device. IP-Adapters themselves are read when they are used. Raises
    CheckpointError."""
    if not spec.controls:
        return Controls()
    nets: dict[Path, torch.nn.Module] = {}
    encoders: dict[Path, tuple[torch.nn.Module, Any]] = {}
    notes: list[str] = []
    for control in spec.controls:
        if control.kind in NETS and control.path not in nets:
            nets[control.path], of_net = _load_net(control, dtype)
            notes += of_net
        if control.kind == "ip-adapter" and not hasattr(pipeline_class, "load_ip_adapter"):
            raise CheckpointError(f"ip_adapters: {pipeline_class.__name__} takes no IP-Adapters")
        if control.image_encoder is not None and control.image_encoder not in encoders:
            encoder, processor, of_encoder = _load_encoder(control.image_encoder, dtype)
            encoders[control.image_encoder] = (encoder, processor)
            notes += of_encoder
    by_name = {control.name: control for control in spec.controls}
    hashes = FileHashes()
    controls = Controls(
        by_name, nets, encoders, control_bytes(spec.controls, dtype.itemsize), tuple(notes), hashes,
        {path: hashes.of_folder(path) for path in nets},
    )  # fmt: skip
    move_modules(controls.modules, device)
    copy_mapped_weights(controls.modules)
    return controls


def _load_net(control: Control, dtype: torch.dtype) -> tuple[torch.nn.Module, list[str]]:
    """Load a ControlNet or T2I-Adapter, with notes on its files. Raises CheckpointError."""
    key, called = KEYS[control.kind], CALLED[control.kind]
    name = str(_config(control.path, key).get("_class_name"))
    kind = getattr(diffusers, name, None) if called.replace("-", "") in name else None
    if kind is None or not hasattr(kind, "from_pretrained"):
        raise CheckpointError(f"{key}: {control.path}/config.json: {name} is no {called} of diffusers")
    with _named(key, control.path):
        variant = single_variant(control.path)
        return load_model(kind, control.path, control.name, torch_dtype=dtype, variant=variant)


def _load_encoder(folder: Path, dtype: torch.dtype) -> tuple[torch.nn.Module, Any, list[str]]:
    """Load an image encoder, with the processor that prepares images for it, and notes on its files. Raises
    CheckpointError."""
    names = _config(folder, "ip_adapters").get("architectures") or [None]
    name = VISION_HALVES.get(names[0], str(names[0]))
    kind = getattr(transformers, name, None) if name.endswith(ENCODERS) else None
    if kind is None:
        raise CheckpointError(f"ip_adapters: {folder}/config.json: {names[0]} is no image encoder of transformers")
    with _named("ip_adapters", folder):
        options: dict[str, Any] = {}
        if names[0] == "CLIPModel":
            both = transformers.CLIPConfig.from_pretrained(folder, local_files_only=True)
            both.vision_config.projection_dim = both.projection_dim  # some name it for both encoders alone
            options["config"] = both.vision_config
        encoder, notes = load_model(kind, folder, "image_encoder", dtype=dtype, **options)
        return encoder, _image_processor(folder, encoder), notes


def _image_processor(folder: Path, encoder: Any) -> Any:
    """Return the folder's own image processor, or the one that encoders of this kind were trained with."""
    if (folder / "preprocessor_config.json").is_file():
        return transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    side_px = encoder.config.image_size
    if type(encoder).__name__.startswith("Siglip"):
        return transformers.SiglipImageProcessor(size={"height": side_px, "width": side_px})
    return transformers.CLIPImageProcessor(size={"shortest_edge": side_px}, crop_size=side_px)


def _config(folder: Path, key: str) -> Mapping[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{key}: {folder}: no config.json can be read from it") from error
    return config if isinstance(config, dict) else {}


@contextlib.contextmanager
def _named(key: str, folder: Path) -> Iterator[None]:
    """Raise CheckpointError for any error of the libraries about a broken file."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{key}: {error}") from error
    except Exception as error:
        if is_out_of_memory(error) or is_device_error(error):
            raise
        raise CheckpointError(f"{key}: {folder} does not load: {type(error).__name__}: {error}") from error
