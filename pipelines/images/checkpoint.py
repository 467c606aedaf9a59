"""Checkpoints from the local disk: a diffusers folder, or one .safetensors file with a folder of configs.

Loading is the library's own, with safetensors only, offline, and no code from the checkpoint. The components are loaded
once; the pipelines of every task are built around the same modules.
"""

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import diffusers
import torch

from pipelines.catalog.checkpoint_files import CheckpointError, check_files, denoiser_name, device_bytes, model_index
from pipelines.device.dtypes import compute_dtype
from pipelines.images import runtime_options
from pipelines.protocol.images import CheckpointSpec, Lora
from pipelines.protocol.messages import Abilities

LOADING = threading.Lock()  # the libraries build modules under global state: one checkpoint at a time


class UnsupportedTask(Exception):
    """A checkpoint that can't do what a job asks of it; `param` is the field that asks."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Loaded weights. `components` are the modules that all pipelines share."""

    spec: CheckpointSpec
    kind: type[Any]  # the text-to-image pipeline's class
    components: dict[str, Any]
    config: dict[str, Any]  # further constructor arguments, such as is_distilled
    device: torch.device
    multiple_px: int  # of both sides of a drawn picture: a latent, or a patch of two by two of them

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
    def denoiser(self) -> Any:
        """The part that runs at every step."""
        return self.components.get("unet") or self.components["transformer"]

    @property
    def abilities(self) -> Abilities:
        """What a request may ask of it."""
        accepted = inspect.signature(self.kind.__call__).parameters
        own = accepted.get("guidance_scale")
        blank_only = "true_cfg_scale" in accepted and own is not None and own.default is not None
        distilled = bool(self.config.get("is_distilled"))  # such a pipeline takes guidance, and leaves it alone
        return Abilities(
            img2img=self.task_class("Img2Img") is not None,
            inpaint=self.task_class("Inpaint") is not None,
            negative_prompt="negative_prompt" in accepted and not blank_only and not distilled,
            guidance=not distilled and ("guidance_scale" in accepted or "true_cfg_scale" in accepted),
        )

    @property
    def weights_bytes(self) -> int:
        """Memory that the weights take on the device."""
        modules = [part for part in self.components.values() if isinstance(part, torch.nn.Module)]
        sizes = ([weight.nbytes for weight in (*part.parameters(), *part.buffers())] for part in modules)
        return device_bytes(sizes, self.spec.runtime.offload)

    def begin_run(self, loras: Sequence[tuple[str, float]]) -> None:
        """Before a run: nothing of the last run's step cache, and the adapters that this one asks for."""
        runtime = self.spec.runtime
        if runtime.cache is not None:
            self.denoiser._reset_stateful_cache()
        if runtime.lora_folder is None:
            return
        pipeline = self.pipeline("")
        asked = runtime_options.asked_for(runtime, loras)
        active = runtime_options.always_on(runtime) | asked
        loaded = {name for names in pipeline.get_list_adapters().values() for name in names}
        if unused := sorted(loaded - active.keys()):  # they would stay for good: nobody counts them
            pipeline.delete_adapters(unused)
        for name in asked.keys() - loaded:
            _load_named(pipeline, asked[name], name)
        if active:
            pipeline.set_adapters(list(active), [lora.weight for lora in active.values()])

    def move(self, device: torch.device) -> None:
        """Take the weights to another device, in place."""
        for part in self.components.values():
            if isinstance(part, torch.nn.Module):
                part.to(device)

    def _scheduler(self) -> Any:
        """A fresh one for each job: schedulers keep state between steps."""
        own = self.components["scheduler"]
        name, shift = self.spec.sampling.scheduler, self.spec.sampling.shift
        kind = getattr(diffusers, name, None) if name else type(own)
        if kind is None or not hasattr(kind, "from_config"):
            raise CheckpointError(f"sampling.scheduler: diffusers has no scheduler called {name!r}")
        return kind.from_config(own.config, **({} if shift is None else {"shift": shift}))


def _load_named(pipeline: Any, lora: Lora, name: str) -> None:
    """An adapter that a request names. Raises UnsupportedTask."""
    try:
        runtime_options.load_lora(pipeline, lora, name)
    except CheckpointError as error:
        raise UnsupportedTask(f"the adapter '{lora.path.stem}' does not fit it", "loras") from error


def load_checkpoint(
    spec: CheckpointSpec, device: torch.device, boundary: Callable[..., None] | None = None
) -> Checkpoint:
    """The weights on the device. `boundary` is called before every forward pass of a part. Raises CheckpointError."""
    folder = check_files(spec)
    index = model_index(folder)
    name = index["_class_name"]
    kind = getattr(diffusers, name, None)
    if kind is None or not hasattr(kind, "from_pretrained"):
        raise CheckpointError(f"{folder / 'model_index.json'}: diffusers {diffusers.__version__} has no class {name}")
    if spec.path.is_file() and not hasattr(kind, "from_single_file"):
        raise CheckpointError(f"{spec.path}: {name} can't be loaded from a single file; use a diffusers folder")
    pipeline = _read(spec, kind, index, device)
    denoiser = getattr(pipeline, denoiser_name(index))
    runtime_options.apply(pipeline, denoiser, spec.runtime, device)
    if boundary is not None:
        _mark_boundaries(pipeline.components, boundary)
    config = {key: value for key, value in pipeline.config.items() if not key.startswith("_")}
    config = {key: value for key, value in config.items() if key not in pipeline.components}
    scale = int(getattr(pipeline, "vae_scale_factor", 8))
    multiple = scale if hasattr(pipeline, "unet") else 2 * scale
    return Checkpoint(spec, kind, dict(pipeline.components), config, device, multiple)


def _read(spec: CheckpointSpec, kind: type[Any], index: dict[str, Any], device: torch.device) -> Any:
    """From the files straight to the device, unless the weights are to be offloaded. Raises CheckpointError."""
    # What a checkpoint leaves out on purpose, such as a safety checker, has to be named: it is required otherwise.
    absent = {part: None for part, entry in index.items() if entry == [None, None]}
    options = {
        "torch_dtype": compute_dtype(spec.runtime.dtype, device),
        "local_files_only": True,
        **absent,
        **runtime_options.loading_options(spec.runtime, denoiser_name(index)),
    }
    try:
        with LOADING:
            return _from_files(spec, kind, options, device)
    except (torch.OutOfMemoryError, CheckpointError):
        raise
    except Exception as error:  # the libraries raise anything for a broken file
        raise CheckpointError(
            f"{spec.path} does not load as {kind.__name__}: {type(error).__name__}: {error}"
        ) from error


def _from_files(spec: CheckpointSpec, kind: type[Any], options: dict[str, Any], device: torch.device) -> Any:
    on_device = spec.runtime.offload == "none"
    if spec.path.is_dir():
        placed = {"device_map": device.type} if on_device and device.type != "cpu" else {}
        pipeline = kind.from_pretrained(spec.path, use_safetensors=True, **options, **placed)
    else:
        pipeline = kind.from_single_file(str(spec.path), config=str(spec.config), **options)
        if on_device:
            pipeline.to(device)
    _lay_out(pipeline.components)
    return pipeline


def _lay_out(components: dict[str, Any]) -> None:
    """Channels last, in place: a codec on a CPU then takes about half the time, and less memory."""
    for part in components.values():
        if hasattr(part, "parameters") and all(weight.dim() < 5 for weight in part.parameters()):
            part.to(memory_format=torch.channels_last)


def _mark_boundaries(components: dict[str, Any], boundary: Callable[..., None]) -> None:
    """Every forward pass of a part begins a turn, and so does every tile that a codec encodes or decodes."""
    for part in components.values():
        if isinstance(part, torch.nn.Module):
            halves = [half for half in (getattr(part, "encoder", None), getattr(part, "decoder", None)) if half]
            for module in halves if hasattr(part, "decode") and halves else [part]:
                module.register_forward_pre_hook(boundary)
