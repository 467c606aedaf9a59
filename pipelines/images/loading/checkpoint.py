"""A loaded checkpoint: its components, and the pipelines, schedulers and adapters of its runs."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import torch
from diffusers import SchedulerMixin
from diffusers.guiders import BaseGuidance

from pipelines.checkpoints.classes.facts import UPSCALES, ReadMode, declared_capabilities, draws_alpha, read_mode
from pipelines.checkpoints.memory.device_bytes import fullest_device_bytes
from pipelines.checkpoints.memory.host_bytes import host_bytes
from pipelines.checkpoints.work.plan import MODES
from pipelines.device.choice import describe
from pipelines.device.memory import plain_tensors
from pipelines.device.staged_copy import move_modules
from pipelines.families.generic import Family
from pipelines.families.registry import family_of
from pipelines.families.task import Task
from pipelines.images.denoising.merging import ForwardMerger
from pipelines.images.denoising.noise_schedulers import new_scheduler
from pipelines.images.denoising.pass_graphs import PassGraphs
from pipelines.images.denoising.step_caches import StepCaches
from pipelines.images.loading import runtime_options
from pipelines.images.loading.adapters import Adapters
from pipelines.images.loading.base_state import weights_digest
from pipelines.images.loading.compilation import raise_recompile_limit
from pipelines.images.loading.controls import NETS, Controls, takes_adapter
from pipelines.images.loading.shared_parts import Sizes, sizes_of
from pipelines.images.modular import is_modular
from pipelines.images.parallel.encoders import on_device, text_encoders
from pipelines.images.parallel.group import SharedDenoiser
from pipelines.images.prompts.cache import PromptCache
from pipelines.images.prompts.long_prompts import long_prompt_modes
from pipelines.images.tasks import UnsupportedTask, controlnet_class
from pipelines.protocol.images import (
    CheckpointSpec,
    ControlInput,
    RawImage,
    Runtime,
    Sampling,
    SamplingDefaults,
)
from pipelines.protocol.messages import Capabilities, ControlledWith

BLANK = RawImage(1, 1, "RGB", bytes(3))
PACKAGES = ("darkroom", "diffusers", "torch")
SEEDS = "64 bits"  # how much of a seed counts: the lowest 32 bits in images that do not say it


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
    split: SharedDenoiser | None = None  # of the denoiser, if several devices compute its forward passes
    encoders_device: torch.device | None = None  # of text encoders, if it is another one
    adapters: Adapters = field(default_factory=Adapters)  # that requests have named
    identity: Mapping[str, str] = field(default_factory=dict)  # what draws: versions, device, weights

    def pipeline(
        self, task: Task | None = None, sampling: SamplingDefaults | None = None, nets: Sequence[ControlInput] = ()
    ) -> Any:
        """Return a pipeline for a task, or of the class in model_index.json, with schedulers of its own.

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
        sampling = sampling or self.spec.sampling
        others = {name: part for name, part in parts.items() if isinstance(part, SchedulerMixin)}  # such as a prior's
        parts |= {name: type(part).from_config(part.config) for name, part in others.items()}
        parts["scheduler"] = new_scheduler(self.components["scheduler"], sampling)
        guiders = {name: part for name, part in parts.items() if isinstance(part, BaseGuidance)}
        parts |= {name: _new_guider(guider, sampling.guidance) for name, guider in guiders.items()}
        elsewhere = self.encoders_device is not None or self.runtime.offload == "encoders"
        pipeline_class = on_device(task_class, self.device) if elsewhere else task_class
        pipeline = pipeline_class(**parts)
        pipeline.set_progress_bar_config(disable=True)
        self.prompts.attach(pipeline)
        return pipeline

    @property
    def read_mode(self) -> ReadMode:
        """Return the mode in which the codec takes an image."""
        return read_mode(self._codec_config)

    @property
    def latent_channels(self) -> int | None:
        """Return the channels of the codec's latents, if its config says."""
        return self._codec_config.get("latent_channels")

    @property
    def _codec_config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = getattr(self.components.get("vae"), "config", {})
        return config

    @property
    def second_pass_task(self) -> Task:
        """Return the task by which tiles of a larger image are redrawn. A checkpoint that only inpaints, or has no
        image-to-image class, repaints them under a full mask."""
        tasks = self.task_classes
        own = [task for task, drawn_by in tasks.items() if drawn_by is self.pipeline_class]
        only_inpaints = own == [Task.INPAINT]
        return Task.INPAINT if only_inpaints or Task.REDRAW not in tasks else Task.REDRAW

    def starts_late(self, task: Task) -> bool:
        """Return whether the class for text draws this task, from noised latents (late_start.py)."""
        own = self.task_classes.get(Task.TEXT)
        if own is not None and is_modular(own):
            return False
        return task in {Task.REDRAW, Task.INPAINT} and own is not None and self.task_classes.get(task) is own

    def takes_size(self, task: Task) -> bool:
        """Return whether the task's call takes a size. Others draw in the size of the reference."""
        return "width" in inspect.signature(self.task_classes[task].__call__).parameters

    @property
    def family(self) -> Family:
        """Return the family, with the peculiarities of the checkpoint's classes."""
        return family_of(self.pipeline_class.__name__)

    @property
    def denoiser(self) -> Any:
        """Return the component that runs at every step."""
        return self.components.get("unet") or self.components["transformer"]

    @property
    def is_upscaler(self) -> bool:
        """Return whether it enlarges images, and draws none."""
        return self.spec.conditioning == "upscale"

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities that the checkpoint's classes announce. Warmup tries them."""
        if self.is_upscaler:
            return UPSCALES
        call = inspect.signature(self.pipeline_class.__call__).parameters
        announced = declared_capabilities(
            self.family, call, self.task_classes, self.spec, self.config, self.denoiser.config
        )
        long_prompts, transparent = (
            long_prompt_modes(self.pipeline_class, self.components),
            draws_alpha(self._codec_config),
        )
        return self._with_controls(replace(announced, long_prompts=long_prompts, transparent=transparent))

    def _with_controls(self, announced: Capabilities) -> Capabilities:
        """Add the controls that the classes announce to the capabilities."""
        controls = self.spec.controls
        by_kind = {
            kind: [ControlInput(each.name, BLANK, 1.0) for each in controls if each.kind == kind] for kind in NETS
        }
        tasks: dict[ControlledWith, Task] = {
            "text": Task.TEXT, "image": MODES[self.spec.conditioning].task, "mask": Task.INPAINT,
        }  # fmt: skip

        def ways(nets: list[ControlInput]) -> tuple[ControlledWith, ...]:
            infix = self.controls.infix(nets[:1]) if nets else None
            return tuple(
                way for way, task in tasks.items() if infix and controlnet_class(self.pipeline_class, task, infix)
            )

        has_adapters = any(each.kind == "ip-adapter" for each in controls)
        return replace(
            announced,
            controlnets_with=ways(by_kind["controlnet"]),
            controlnets_at_once=len(by_kind["controlnet"]),
            t2i_adapters_with=ways(by_kind["t2i-adapter"]),
            t2i_adapters_at_once=len(by_kind["t2i-adapter"]),
            ip_adapters_with=tuple(
                way for way, task in tasks.items() if has_adapters and takes_adapter(self.task_classes.get(task))
            ),
        )

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of the weights on the device."""
        return fullest_device_bytes(self._sizes, self.runtime) + self.controls.bytes

    @property
    def host_bytes(self) -> int:
        """Return the bytes of the weights that wait on the host for their turn."""
        return host_bytes(self._sizes, self.runtime)

    @property
    def _sizes(self) -> dict[str, list[int]]:
        return {  # those of what a quantized weight consists of, which itself does not count them
            name: [each.nbytes for weight in (*part.parameters(), *part.buffers()) for each in plain_tensors(weight)]
            for name, part in self.components.items()
            if isinstance(part, torch.nn.Module)
        }

    def read_adapters(self, sampling: Sampling, controls: Sequence[ControlInput] = ()) -> None:
        """Read the requested adapters' files before a run has the device; `begin_run` then finds them in the page
        cache. Files that are not there or can't be read are left to it."""
        self.adapters.read(runtime_options.requested_adapters(self.spec.runtime, sampling.loras))
        self.controls.read(controls)

    @property
    def part_sizes(self) -> Sizes:
        """Return the bytes of each component but the denoiser: those that other checkpoints may share."""
        return sizes_of(part for part in self.components.values() if part is not self.denoiser)

    def begin_run(self, sampling: Sampling, controls: Sequence[ControlInput] = ()) -> dict[str, Any]:
        """Reset the step caches before a run, on its thread, and activate the catalog's adapters and the requested
        ones. Returns the findings about their files: JSON. Raises UnsupportedTask and ModifiedWeights."""
        runtime = self.spec.runtime
        if runtime.compile:
            raise_recompile_limit()
        if self.step_caches is not None:
            self.step_caches.begin_run()
        if self.spec.controls:
            held = bool(self.adapters.drawing)
            self.controls.activate(self.pipeline(None, sampling), self.denoiser, controls, held=held)
        found: dict[str, Any] = {"control_files": hashes} if (hashes := self.controls.found(controls)) else {}
        if runtime.lora_folder is not None:
            requested = runtime_options.requested_adapters(runtime, sampling.loras)
            always = runtime_options.catalog_adapters(runtime)
            pipeline = self.pipeline(None, sampling)
            hashes = self.adapters.activate(pipeline, always, requested)
            self.prompts.set_adapters(self.adapters.encoder_adapters(pipeline, always | requested))
            found |= {"adapters": hashes} if hashes else {}
        if (graphs := self._graphs) is not None:
            strengths = [(each.name, each.strength) for each in self.controls.of_kind(("ip-adapter",), controls)]
            graphs.require((sampling.loras, strengths, found))
        return found

    def is_outdated(self, sampling: Sampling, controls: Sequence[ControlInput]) -> bool:
        """Return whether the file of an adapter or control of a run has changed since it was read."""
        requested = runtime_options.requested_adapters(self.spec.runtime, sampling.loras)
        return self.adapters.is_outdated(requested) or self.controls.is_outdated(controls)

    def forget(self, *, in_use: bool) -> None:
        """Free what only makes later images quicker: kept prompts, and graphs of passes."""
        self.prompts.clear()
        if (graphs := self._graphs) is None:
            return
        if in_use:
            graphs.clear_at_next_pass()
        else:
            graphs.clear()

    @property
    def _graphs(self) -> PassGraphs | None:
        return None if self.merger is None else self.merger.graphs

    def move(self, device: torch.device) -> None:
        """Move the weights to another device, in place. Kept prompts are dropped, and graphs."""
        self.forget(in_use=False)
        self.controls.deactivate(self.denoiser)
        parts = [part for part in self.components.values() if isinstance(part, torch.nn.Module)]
        elsewhere = [] if self.encoders_device is None else text_encoders(self.components)
        move_modules([*(part for part in parts if part not in elsewhere), *self.controls.modules], device)
        if self.encoders_device is not None:
            move_modules(elsewhere, self.encoders_device if device == self.device else device)


def _new_guider(guider: BaseGuidance, scale: float) -> BaseGuidance:
    """Return a guider for one call, which counts its steps in it, with this scale if it has one."""
    return guider.new(**({"guidance_scale": scale} if "guidance_scale" in guider.config else {}))


def identity_of(components: Mapping[str, Any], device: torch.device, count: int, dtype: torch.dtype) -> dict[str, str]:
    """Return what an image is drawn by, which its file says so that a drawing that differs can be explained: versions,
    the device with how many of it a checkpoint uses, the number format, how much of a seed counts, and a digest of the
    weights in memory."""
    return {
        **{name: version(name) for name in PACKAGES},
        "device": describe(device, count),
        "dtype": str(dtype).removeprefix("torch."),
        "seeds": SEEDS,
        "weights": weights_digest(components),
    }
