"""Checkpoints from the local disk: a diffusers folder, or one .safetensors file with a folder of configs.

Loading is the library's own, with safetensors only, offline, and no code from the checkpoint. The components are loaded
once; the pipelines of every task are built around the same modules.
"""

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch

from pipelines.types import CheckpointSpec, Runtime

PICKLES = ("*.bin", "*.ckpt", "*.pt", "*.pth", "*.pkl")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class CheckpointError(Exception):
    """A checkpoint that can't be served: which file, and what would be right."""


class UnsupportedTask(Exception):
    """A checkpoint that can't do what a job asks of it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Loaded weights. `components` are the modules that all pipelines share."""

    spec: CheckpointSpec
    kind: type[Any]  # the text-to-image pipeline's class
    components: dict[str, Any]
    config: dict[str, Any]  # further constructor arguments, such as is_distilled
    device: torch.device

    def pipeline(self, task: str) -> Any:
        """A pipeline for "" (the checkpoint's own), "Img2Img" or "Inpaint", with a scheduler of its own.

        Diffusers names a family's pipelines XPipeline, XImg2ImgPipeline and XInpaintPipeline. Raises UnsupportedTask.
        """
        kind = self.task_class(task)
        if kind is None:
            raise UnsupportedTask(f"{self.kind.__name__} has no {task} pipeline")
        wanted = inspect.signature(kind.__init__).parameters
        parts = {name: part for name, part in {**self.components, **self.config}.items() if name in wanted}
        parts["scheduler"] = self._scheduler()
        pipeline = kind(**parts)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def task_class(self, task: str) -> type[Any] | None:
        """The family's class for a task, if it has one."""
        base = self.kind.__name__.removesuffix("Pipeline")
        return getattr(diffusers, f"{base}{task}Pipeline", None)

    @property
    def multiple_px(self) -> int:
        """What both sides of a drawn picture must be a multiple of: a latent, or a patch of two by two of them."""
        pipeline = self.pipeline("")
        scale = getattr(pipeline, "vae_scale_factor", 8)
        return int(scale) if hasattr(pipeline, "unet") else 2 * int(scale)

    def _scheduler(self) -> Any:
        """A fresh one for each job: schedulers keep state between steps."""
        own = self.components["scheduler"]
        name, shift = self.spec.sampling.scheduler, self.spec.sampling.shift
        kind = getattr(diffusers, name, None) if name else type(own)
        if kind is None or not hasattr(kind, "from_config"):
            raise CheckpointError(f"sampling.scheduler: diffusers has no scheduler called {name!r}")
        return kind.from_config(own.config, **({} if shift is None else {"shift": shift}))


def load_checkpoint(spec: CheckpointSpec, device: torch.device) -> Checkpoint:
    """The weights on the device. Raises CheckpointError."""
    folder = _check_files(spec)
    index = _model_index(folder)
    name = index["_class_name"]
    kind = getattr(diffusers, name, None)
    if kind is None or not hasattr(kind, "from_pretrained"):
        raise CheckpointError(f"{folder / 'model_index.json'}: diffusers {diffusers.__version__} has no class {name}")
    if spec.path.is_file() and not hasattr(kind, "from_single_file"):
        raise CheckpointError(f"{spec.path}: {name} can't be loaded from a single file; use a diffusers folder")
    # What a checkpoint leaves out on purpose, such as a safety checker, has to be named: it is required otherwise.
    absent = {part: None for part, entry in index.items() if entry == [None, None]}
    options = {"torch_dtype": _dtype(spec.runtime, device), "local_files_only": True, **absent}
    try:
        if spec.path.is_dir():
            pipeline = kind.from_pretrained(spec.path, use_safetensors=True, **options)
        else:
            pipeline = kind.from_single_file(str(spec.path), config=str(spec.config), **options)
        pipeline.to(device)
        _lay_out(pipeline.components)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the libraries raise anything for a broken file
        raise CheckpointError(f"{spec.path} does not load as {name}: {type(error).__name__}: {error}") from error
    if spec.runtime.vae_tiling:
        pipeline.vae.enable_tiling()
    config = {key: value for key, value in pipeline.config.items() if not key.startswith("_")}
    config = {key: value for key, value in config.items() if key not in pipeline.components}
    return Checkpoint(spec, kind, dict(pipeline.components), config, device)


def _lay_out(components: dict[str, Any]) -> None:
    """Channels last, in place: a codec on a CPU then takes about half the time, and less memory."""
    for part in components.values():
        if hasattr(part, "parameters") and all(weight.dim() < 5 for weight in part.parameters()):
            part.to(memory_format=torch.channels_last)


def _check_files(spec: CheckpointSpec) -> Path:
    """The folder with model_index.json, after what can be told without loading."""
    if not spec.path.exists():
        raise CheckpointError(f"{spec.path}: there is no such checkpoint")
    folder = spec.path if spec.path.is_dir() else spec.config
    if folder is None or (spec.path.is_file() and spec.path.suffix != ".safetensors"):
        raise CheckpointError(f"{spec.path}: neither a diffusers folder nor a .safetensors file with `config`")
    if not (folder / "model_index.json").is_file():
        raise CheckpointError(f"{folder}: no model_index.json, so this is no diffusers folder")
    if code := next(folder.rglob("*.py"), None):
        raise CheckpointError(f"{code}: checkpoints may not bring code; remove it if the pipeline works without")
    if spec.path.is_dir() and not any(folder.rglob("*.safetensors")):
        pickled = next((file for pattern in PICKLES for file in folder.rglob(pattern)), None)
        found = f"only pickles such as {pickled.name}, which can run code" if pickled else "no weights"
        raise CheckpointError(f"{folder}: {found}; convert the checkpoint to safetensors")
    return folder


def _model_index(folder: Path) -> dict[str, Any]:
    """What model_index.json says: the pipeline's class, and [library, class] of each part."""
    path = folder / "model_index.json"
    try:
        index: dict[str, Any] = json.loads(path.read_text())
        name = index["_class_name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: no _class_name can be read from it") from error
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: _class_name names code of the checkpoint's own, which is not run")
    return index


def _dtype(runtime: Runtime, device: torch.device) -> torch.dtype:
    if runtime.dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return DTYPES[runtime.dtype]
