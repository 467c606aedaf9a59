"""Checkpoints from the local disk: a diffusers folder, a denoiser alone with its base folder, or a whole checkpoint in
one .safetensors file with a folder of configs.

Diffusers loads them: safetensors only, offline, and no code from the checkpoint. The components are loaded once; the
pipelines of all tasks share the same modules.
"""

import contextlib
import inspect
import re
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import diffusers
import torch

from pipelines.catalog.call_signature import PipelineSource, announce, takes_guidance, takes_negative_prompt
from pipelines.catalog.checkpoint_files import (
    CheckpointError,
    check_files,
    denoiser_name,
    device_bytes,
    find_variant,
    model_index,
)
from pipelines.catalog.conditioning import MODES, Task
from pipelines.catalog.inspection import foreign_parts
from pipelines.device.failures import is_device_error, is_out_of_memory
from pipelines.device.memory import Budgets, compute_dtype
from pipelines.device.staged_copy import move_modules
from pipelines.images import runtime_options
from pipelines.images.compilation import raise_recompile_limit
from pipelines.images.controls import Controls, load_controls, takes_adapter
from pipelines.images.families import UnsupportedTask, controlnet_class, task_classes
from pipelines.images.merging import ForwardMerger, Sharing
from pipelines.images.prompt_cache import PromptCache
from pipelines.images.shared_parts import SharedParts, Sizes, sizes_of
from pipelines.images.single_files import load_denoiser
from pipelines.images.size_multiple import size_multiple
from pipelines.images.step_caches import StepCaches
from pipelines.protocol.images import (
    CheckpointSpec,
    ControlInput,
    Lora,
    Picture,
    Runtime,
    Sampling,
    SamplingDefaults,
)
from pipelines.protocol.messages import Abilities, ControlledWith

NEEDED_LIBRARY = re.compile(r"requires the (\w+) library|No module named '(\w+)'")
READ_BYTES = 2**20
BLANK = Picture(1, 1, "RGB", bytes(3))
LOAD_LOCK = threading.Lock()  # the libraries change global state while they build modules


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Loaded weights. `components` are the modules that all pipelines share.

    The weights are shared by all specs that name them: `spec` is the one that loaded them, and its sampling need not be
    a job's.
    """

    spec: CheckpointSpec
    pipeline_class: type[Any]  # that model_index.json names
    task_classes: Mapping[Task, type[Any]]  # the pipeline class of each task
    runtime: Runtime  # as loaded: the spec's, or what its `auto` stands for
    components: dict[str, Any]
    config: dict[str, Any]  # further constructor arguments, such as is_distilled
    device: torch.device
    step_caches: StepCaches | None
    multiple_px: int  # of both sides of what a pipeline draws: a latent, a patch of 2 x 2, or what it asks for
    notes: tuple[str, ...] = ()  # on how it was loaded, for the operator
    controls: Controls = field(default_factory=Controls)
    prompts: PromptCache = field(default_factory=PromptCache)
    merger: ForwardMerger | None = None  # of the denoiser, if runs share its forward passes
    adapter_versions: dict[str, int] = field(default_factory=dict)  # of loaded files on request: mtime in ns

    def pipeline(
        self, task: Task | None = None, sampling: SamplingDefaults | None = None, nets: Sequence[ControlInput] = ()
    ) -> Any:
        """A pipeline for a task, or of the class in model_index.json, with a scheduler of its own.

        `sampling` chooses the scheduler, by default the spec's; `nets` are ControlNets. Raises UnsupportedTask.
        """
        task_class = self.pipeline_class if task is None else self.task_classes.get(task)
        if nets and task is not None:
            task_class = controlnet_class(self.pipeline_class, task, self.controls.infix(nets))
        if task_class is None:
            param = "controls" if nets else "mask" if task is Task.INPAINT else "image"
            raise UnsupportedTask(f"{self.pipeline_class.__name__} has no pipeline for it", param)
        accepted = inspect.signature(task_class.__init__).parameters
        known = {**self.components, **self.config, **self.controls.parts(nets)}
        parts = {name: part for name, part in known.items() if name in accepted}
        parts["scheduler"] = self._scheduler(sampling or self.spec.sampling)
        pipeline = task_class(**parts)
        pipeline.set_progress_bar_config(disable=True)
        self.prompts.attach(pipeline)
        return pipeline

    @property
    def second_pass_task(self) -> Task:
        """How tiles of a larger picture are redrawn. A checkpoint that only inpaints, or has no image-to-image class,
        repaints them under a full mask."""
        tasks = self.task_classes
        only_inpaints = tasks.get(Task.INPAINT) is self.pipeline_class and not self.starts_late(Task.INPAINT)
        return Task.INPAINT if only_inpaints or Task.REDRAW not in tasks else Task.REDRAW

    def starts_late(self, task: Task) -> bool:
        """Whether the class for text draws this task, from noised latents (pipelines.images.late_start)."""
        own = self.task_classes.get(Task.TEXT)
        return task in {Task.REDRAW, Task.INPAINT} and own is not None and self.task_classes.get(task) is own

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
        accepted = inspect.signature(self.pipeline_class.__call__).parameters
        announced = announce(
            self.spec,
            self.task_classes,
            negative_prompt=takes_negative_prompt(accepted, self.config),
            guidance=takes_guidance(accepted, self.config, self.denoiser.config),
        )
        return self._with_controls(announced)

    def _with_controls(self, announced: Abilities) -> Abilities:
        """What its classes announce of its controls."""
        controls = self.spec.controls
        nets = [ControlInput(each.name, BLANK, 1.0) for each in controls if each.kind == "controlnet"]
        tasks: dict[ControlledWith, Task] = {
            "text": Task.TEXT, "image": MODES[self.spec.conditioning].task, "mask": Task.INPAINT,
        }  # fmt: skip
        infix = self.controls.infix(nets[:1]) if nets else None
        return replace(
            announced,
            controlnets_with=tuple(
                way for way, task in tasks.items() if infix and controlnet_class(self.pipeline_class, task, infix)
            ),
            controlnets_at_once=len(nets),
            ip_adapters_with=tuple(
                way
                for way, task in tasks.items()
                if len(controls) > len(nets) and takes_adapter(self.task_classes.get(task))
            ),
        )

    @property
    def weights_bytes(self) -> int:
        """Memory of the weights on the device."""
        modules = [part for part in self.components.values() if isinstance(part, torch.nn.Module)]
        sizes = ([weight.nbytes for weight in (*part.parameters(), *part.buffers())] for part in modules)
        return device_bytes(sizes, self.runtime.offload) + self.controls.bytes

    def read_adapters(self, sampling: Sampling, controls: Sequence[ControlInput] = ()) -> None:
        """Before a run has the device: read the requested adapters' files, which `begin_run` then finds in the page
        cache. Files that are not there or can't be read are left to it.
        """
        loras = runtime_options.requested_adapters(self.spec.runtime, sampling.loras).values()
        for path in [*(lora.path for lora in loras), *self.controls.adapter_files(controls)]:
            with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
                while file.read(READ_BYTES):
                    pass

    @property
    def part_sizes(self) -> Sizes:
        """Bytes of each component but the denoiser: those that other checkpoints may share."""
        return sizes_of(part for part in self.components.values() if part is not self.denoiser)

    def begin_run(self, sampling: Sampling, controls: Sequence[ControlInput] = ()) -> None:
        """Before a run, on its thread: reset its step caches, and activate the catalog's adapters and the requested
        ones."""
        runtime = self.spec.runtime
        if runtime.compile:
            raise_recompile_limit()
        if self.step_caches is not None:
            self.step_caches.begin_run()
        if self.spec.controls:
            self.controls.activate(self.pipeline(None, sampling), self.denoiser, controls)
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
            self.adapter_versions[name] = requested[name].path.stat().st_mtime_ns
        if active:
            pipeline.set_adapters(list(active), [lora.weight for lora in active.values()])
        self.prompts.set_adapters(self._encoders_adapters(pipeline, active))

    def _encoders_adapters(self, pipeline: Any, active: Mapping[str, Lora]) -> Hashable:
        """Those that change the embeddings of prompts, by name, weight and version of the file."""
        parts = pipeline.get_list_adapters()
        names = {
            name for part, names in parts.items() if getattr(pipeline, part) is not self.denoiser for name in names
        }
        changing = ((name, lora) for name, lora in active.items() if name in names)
        return tuple((name, lora.weight, self.adapter_versions.get(name)) for name, lora in changing)

    def move(self, device: torch.device) -> None:
        """Move the weights to another device, in place. Kept prompts are dropped."""
        self.prompts.clear()
        self.controls.deactivate(self.denoiser)
        parts = [part for part in self.components.values() if isinstance(part, torch.nn.Module)]
        move_modules([*parts, *self.controls.modules], device)

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
    spec: CheckpointSpec,
    device: torch.device,
    sharing: Sharing | None = None,
    shared: SharedParts | None = None,
    budget_bytes: int | None = None,
) -> Checkpoint:
    """Load it onto the device. With `sharing`, its runs take turns, and share the denoiser's forward passes. `shared`
    has the components of checkpoints that are loaded already. `budget_bytes` is what `runtime = "auto"` may fill, by
    default the device's share for weights.

    Raises CheckpointError.
    """
    shared = shared or SharedParts()
    budget_bytes = Budgets.of(device).device_bytes if budget_bytes is None else budget_bytes
    runtime, chosen = runtime_options.resolve(spec, device, budget_bytes)
    resolved = replace(spec, runtime=runtime)
    dtype = compute_dtype(runtime.dtype, device)
    folder = check_files(spec)
    index = model_index(folder)
    name = index["_class_name"]
    pipeline_class = getattr(diffusers, name, None)
    if pipeline_class is None or not hasattr(pipeline_class, "from_pretrained"):
        raise CheckpointError(f"{folder / 'model_index.json'}: diffusers {diffusers.__version__} has no class {name}")
    if foreign := next(foreign_parts(index, folder, PipelineSource()), None):
        raise CheckpointError(foreign)
    if "num_frames" in inspect.signature(pipeline_class.__call__).parameters:
        raise CheckpointError(f"{folder}: {name} draws videos, and Darkroom pictures")
    if spec.path.is_file() and spec.base is None and not hasattr(pipeline_class, "from_single_file"):
        raise CheckpointError(f"{spec.path}: {name} can't be loaded from a single file; use a diffusers folder")
    found = shared.find(resolved, dtype, device)
    pipeline = _read(resolved, pipeline_class, index, device, found)
    denoiser = getattr(pipeline, denoiser_name(index))
    notes = chosen + runtime_options.apply(pipeline, denoiser, runtime, device)
    merger = None
    if sharing is not None:
        own = {name: part for name, part in pipeline.components.items() if name not in found}
        merger = _let_runs_share(own, denoiser, runtime, sharing)
    shared.keep(resolved, dtype, device, pipeline.components)
    step_caches = StepCaches(denoiser) if runtime.cache is not None else None
    config = {key: value for key, value in pipeline.config.items() if not key.startswith("_")}
    config = {key: value for key, value in config.items() if key not in pipeline.components}
    scale = int(getattr(pipeline, "vae_scale_factor", 8))
    multiple = size_multiple(pipeline, scale if hasattr(pipeline, "unet") else 2 * scale)
    tasks = task_classes(pipeline_class)
    components = dict(pipeline.components)
    controls = load_controls(spec, pipeline_class, device, dtype)
    return Checkpoint(
        spec, pipeline_class, tasks, runtime, components, config, device, step_caches, multiple, notes, controls,
        merger=merger,
    )  # fmt: skip


def _read(
    spec: CheckpointSpec,
    pipeline_class: type[Any],
    index: dict[str, Any],
    device: torch.device,
    found: Mapping[str, torch.nn.Module],
) -> Any:
    """From the files directly to the device, unless the weights are offloaded. Raises CheckpointError."""
    # A component that the index leaves out on purpose, such as a safety checker, must be passed as None.
    absent = {part: None for part, entry in index.items() if entry == [None, None]}
    options = {
        "torch_dtype": compute_dtype(spec.runtime.dtype, device),
        "local_files_only": True,
        **absent,
        **found,
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
    folder = spec.path if spec.path.is_dir() else spec.base
    if folder is not None:
        # weights that a library quantizes while it reads them are made on the device; others are read to the host
        staged = on_device and device.type != "cpu" and "quantization_config" not in options
        device_map = {"device_map": device.type} if on_device and device.type != "cpu" and not staged else {}
        variant = find_variant(spec)
        if spec.base is not None:
            denoiser = _denoiser_of_file(spec, options)
            if on_device and (not staged or spec.path.suffix == ".gguf"):  # its weights are no plain tensors
                denoiser = {name: part.to(device) for name, part in denoiser.items()}
            options |= denoiser
        pipeline = pipeline_class.from_pretrained(
            folder, use_safetensors=True, variant=variant, **options, **device_map
        )
    else:
        pipeline = pipeline_class.from_single_file(str(spec.path), config=str(spec.config), **options)
        staged = on_device and "quantization_config" not in options
        if on_device and not staged:
            pipeline.to(device)
    if staged:
        move_modules([part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)], device)
    _to_channels_last(pipeline.components)
    return pipeline


def _denoiser_of_file(spec: CheckpointSpec, options: dict[str, Any]) -> dict[str, Any]:
    """The denoiser as an argument of from_pretrained, in place of its quantization. Raises CheckpointError."""
    index = model_index(check_files(spec))
    name = denoiser_name(index)
    kind = getattr(diffusers, index[name][1])
    quantization = options.pop("quantization_config", None)
    config = quantization.quant_mapping[name] if quantization is not None else None
    return {name: load_denoiser(spec, kind, name, options["torch_dtype"], config)}


def _to_channels_last(components: dict[str, Any]) -> None:
    """In place. A codec on a CPU then takes about half the time, and less memory."""
    for part in components.values():
        if hasattr(part, "parameters") and all(weight.dim() < 5 for weight in part.parameters()):
            part.to(memory_format=torch.channels_last)


def _let_runs_share(
    components: dict[str, Any], denoiser: Any, runtime: Runtime, sharing: Sharing
) -> ForwardMerger | None:
    """A turn starts with every forward pass of a component, and with every tile that a codec encodes or decodes. Runs
    meet in the denoiser, unless it caches steps: those caches work within a pass.
    """
    merger = None
    if runtime.cache is None:
        merger = ForwardMerger(denoiser, sharing)
        components = {name: part for name, part in components.items() if part is not denoiser}
    for part in components.values():
        if isinstance(part, torch.nn.Module):
            halves = [half for half in (getattr(part, "encoder", None), getattr(part, "decoder", None)) if half]
            for module in halves if hasattr(part, "decode") and halves else [part]:
                module.register_forward_pre_hook(sharing.scheduler.yield_point)
    return merger
