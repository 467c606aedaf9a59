"""Checkpoints from the local disk: a diffusers folder, or one .safetensors file with a folder of configs.

Diffusers loads them: safetensors only, offline, and no code from the checkpoint. The components are loaded once; the
pipelines of all tasks share the same modules.
"""

import inspect
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import diffusers
import torch

from pipelines.catalog.checkpoint_files import (
    CheckpointError,
    check_files,
    denoiser_name,
    device_bytes,
    find_variant,
    model_index,
)
from pipelines.catalog.conditioning import Task
from pipelines.device.failures import is_device_error, is_out_of_memory
from pipelines.device.memory import compute_dtype
from pipelines.images import runtime_options
from pipelines.images.families import takes_guidance, takes_negative_prompt, task_classes
from pipelines.images.probes import announce
from pipelines.images.step_caches import StepCaches
from pipelines.protocol.images import CheckpointSpec, Lora, Sampling, SamplingDefaults
from pipelines.protocol.messages import Abilities

NEEDED_LIBRARY = re.compile(r"requires the (\w+) library|No module named '(\w+)'")
LOAD_LOCK = threading.Lock()  # the libraries change global state while they build modules


class UnsupportedTask(Exception):
    """The checkpoint can't do what a job asks; `param` is the request's field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Loaded weights. `components` are the modules that all pipelines share.

    The weights are shared by all specs that name them: `spec` is the one that loaded them, and its sampling need not be
    a job's.
    """

    spec: CheckpointSpec
    pipeline_class: type[Any]  # that model_index.json names
    task_classes: Mapping[Task, type[Any]]  # the pipeline class of each task
    components: dict[str, Any]
    config: dict[str, Any]  # further constructor arguments, such as is_distilled
    device: torch.device
    step_caches: StepCaches | None
    multiple_px: int  # of both sides of what a pipeline draws: a latent, or a patch of 2 x 2 latents

    def pipeline(self, task: Task | None = None, sampling: SamplingDefaults | None = None) -> Any:
        """A pipeline for a task, or of the class in model_index.json, with a scheduler of its own.

        `sampling` chooses the scheduler, by default the spec's. Raises UnsupportedTask.
        """
        task_class = self.pipeline_class if task is None else self.task_classes.get(task)
        if task_class is None:
            field = "mask" if task is Task.INPAINT else "image"
            raise UnsupportedTask(f"{self.pipeline_class.__name__} has no pipeline for it", field)
        accepted = inspect.signature(task_class.__init__).parameters
        parts = {name: part for name, part in {**self.components, **self.config}.items() if name in accepted}
        parts["scheduler"] = self._scheduler(sampling or self.spec.sampling)
        pipeline = task_class(**parts)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    @property
    def second_pass_task(self) -> Task:
        """How tiles of a larger picture are redrawn. A checkpoint that only inpaints, or has no image-to-image class,
        repaints them under a full mask."""
        tasks = self.task_classes
        if tasks.get(Task.INPAINT) is self.pipeline_class or Task.REDRAW not in tasks:
            return Task.INPAINT
        return Task.REDRAW

    def takes_size(self, task: Task) -> bool:
        """Whether the task's call takes a size. Others draw in the size of the reference."""
        return "width" in inspect.signature(self.task_classes[task].__call__).parameters

    @property
    def denoiser(self) -> Any:
        """The component that runs at every step."""
        return self.components.get("unet") or self.components["transformer"]

    @property
    def abilities(self) -> Abilities:
        """What its classes announce. Warmup tries it."""
        return announce(
            self.spec,
            self.task_classes,
            negative_prompt=takes_negative_prompt(self.pipeline_class, self.config),
            guidance=takes_guidance(self.pipeline_class, self.config, self.denoiser.config),
        )

    @property
    def weights_bytes(self) -> int:
        """Memory of the weights on the device."""
        modules = [part for part in self.components.values() if isinstance(part, torch.nn.Module)]
        sizes = ([weight.nbytes for weight in (*part.parameters(), *part.buffers())] for part in modules)
        return device_bytes(sizes, self.spec.runtime.offload)

    def begin_run(self, sampling: Sampling) -> None:
        """Before a run: reset its step caches, and activate the catalog's adapters and the requested ones."""
        runtime = self.spec.runtime
        if self.step_caches is not None:
            self.step_caches.begin_run()
        if runtime.lora_folder is None:
            return
        pipeline = self.pipeline(None, sampling)
        requested = runtime_options.requested_adapters(runtime, sampling.loras)
        active = runtime_options.catalog_adapters(runtime) | requested
        loaded = {name for names in pipeline.get_list_adapters().values() for name in names}
        if unused := sorted(loaded - active.keys()):  # nothing else would free them
            pipeline.delete_adapters(unused)
        for name in requested.keys() - loaded:
            _load_named(pipeline, requested[name], name)
        if active:
            pipeline.set_adapters(list(active), [lora.weight for lora in active.values()])

    def move(self, device: torch.device) -> None:
        """Move the weights to another device, in place."""
        for part in self.components.values():
            if isinstance(part, torch.nn.Module):
                part.to(device)

    def _scheduler(self, sampling: SamplingDefaults) -> Any:
        """A new one for each call: schedulers have state between steps."""
        original = self.components["scheduler"]
        name, shift = sampling.scheduler, sampling.shift
        scheduler_class = getattr(diffusers, name, None) if name else type(original)
        if scheduler_class is None or not hasattr(scheduler_class, "from_config"):
            raise CheckpointError(f"sampling.scheduler: diffusers has no scheduler called {name!r}")
        return scheduler_class.from_config(original.config, **({} if shift is None else {"shift": shift}))


def _load_named(pipeline: Any, lora: Lora, name: str) -> None:
    """Load a requested adapter. Raises UnsupportedTask."""
    try:
        runtime_options.load_lora(pipeline, lora, name)
    except CheckpointError as error:
        raise UnsupportedTask(f"the adapter '{lora.path.stem}' does not fit it", "loras") from error


def load_checkpoint(
    spec: CheckpointSpec, device: torch.device, yield_point: Callable[..., None] | None = None
) -> Checkpoint:
    """Load it onto the device. `yield_point` is called before every forward pass of a component.

    Raises CheckpointError.
    """
    folder = check_files(spec)
    index = model_index(folder)
    name = index["_class_name"]
    pipeline_class = getattr(diffusers, name, None)
    if pipeline_class is None or not hasattr(pipeline_class, "from_pretrained"):
        raise CheckpointError(f"{folder / 'model_index.json'}: diffusers {diffusers.__version__} has no class {name}")
    if spec.path.is_file() and not hasattr(pipeline_class, "from_single_file"):
        raise CheckpointError(f"{spec.path}: {name} can't be loaded from a single file; use a diffusers folder")
    pipeline = _read(spec, pipeline_class, index, device)
    denoiser = getattr(pipeline, denoiser_name(index))
    runtime_options.apply(pipeline, denoiser, spec.runtime, device)
    if yield_point is not None:
        _hook_yield_points(pipeline.components, yield_point)
    step_caches = StepCaches(denoiser) if spec.runtime.cache is not None else None
    config = {key: value for key, value in pipeline.config.items() if not key.startswith("_")}
    config = {key: value for key, value in config.items() if key not in pipeline.components}
    scale = int(getattr(pipeline, "vae_scale_factor", 8))
    multiple = scale if hasattr(pipeline, "unet") else 2 * scale
    tasks = task_classes(pipeline_class)
    return Checkpoint(spec, pipeline_class, tasks, dict(pipeline.components), config, device, step_caches, multiple)


def _read(spec: CheckpointSpec, pipeline_class: type[Any], index: dict[str, Any], device: torch.device) -> Any:
    """From the files directly to the device, unless the weights are offloaded. Raises CheckpointError."""
    # A component that the index leaves out on purpose, such as a safety checker, must be passed as None.
    absent = {part: None for part, entry in index.items() if entry == [None, None]}
    options = {
        "torch_dtype": compute_dtype(spec.runtime.dtype, device),
        "local_files_only": True,
        **absent,
        **runtime_options.loading_options(spec.runtime, denoiser_name(index)),
    }
    try:
        with LOAD_LOCK:
            return _from_files(spec, pipeline_class, options, device)
    except CheckpointError:
        raise
    except Exception as error:  # the libraries raise anything for a broken file
        if is_out_of_memory(error) or is_device_error(error):  # not the file's fault
            raise
        if (library := _missing_library(error)) is not None:
            raise CheckpointError(
                f"{spec.path}: {pipeline_class.__name__} needs the library {library}, which is not installed: "
                "pip install --constraint constraints.txt --editable '.[vision]'"
            ) from error
        raise CheckpointError(
            f"{spec.path} does not load as {pipeline_class.__name__}: {type(error).__name__}: {error}"
        ) from error


def _missing_library(error: Exception) -> str | None:
    """The library that a component needs and that is not installed, by what transformers says of it."""
    text = str(error)
    if found := NEEDED_LIBRARY.search(text):
        return (found[1] or found[2]).lower()
    # an image processor without torchvision is a stand-in, which diffusers then fails to load
    return "torchvision" if "Placeholder" in text else None


def _from_files(spec: CheckpointSpec, pipeline_class: type[Any], options: dict[str, Any], device: torch.device) -> Any:
    on_device = spec.runtime.offload == "none"
    if spec.path.is_dir():
        device_map = {"device_map": device.type} if on_device and device.type != "cpu" else {}
        variant = find_variant(spec)
        pipeline = pipeline_class.from_pretrained(
            spec.path, use_safetensors=True, variant=variant, **options, **device_map
        )
    else:
        pipeline = pipeline_class.from_single_file(str(spec.path), config=str(spec.config), **options)
        if on_device:
            pipeline.to(device)
    _to_channels_last(pipeline.components)
    return pipeline


def _to_channels_last(components: dict[str, Any]) -> None:
    """In place. A codec on a CPU then takes about half the time, and less memory."""
    for part in components.values():
        if hasattr(part, "parameters") and all(weight.dim() < 5 for weight in part.parameters()):
            part.to(memory_format=torch.channels_last)


def _hook_yield_points(components: dict[str, Any], yield_point: Callable[..., None]) -> None:
    """A turn starts with every forward pass of a component, and with every tile that a codec encodes or decodes."""
    for part in components.values():
        if isinstance(part, torch.nn.Module):
            halves = [half for half in (getattr(part, "encoder", None), getattr(part, "decoder", None)) if half]
            for module in halves if hasattr(part, "decode") and halves else [part]:
                module.register_forward_pre_hook(yield_point)
