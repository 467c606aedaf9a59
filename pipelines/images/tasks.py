"""Which classes of diffusers draw a job's tasks on the weights of a checkpoint."""

import inspect
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import diffusers

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.work.plan import MODES
from pipelines.families.generic import family_stem
from pipelines.families.registry import family_of
from pipelines.families.task import Task
from pipelines.images.modular import is_modular, modular_tasks
from pipelines.protocol.images import CheckpointSpec


class UnsupportedTask(Exception):
    """The checkpoint lacks a capability that a job asks for; `param` is the request's field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def controlnet_class(own: type[Any], task: Task, infix: str) -> type[Any] | None:
    """Return the class that draws a task with ControlNets: XControlNetPipeline, XControlNetImg2ImgPipeline and
    XControlNetInpaintPipeline beside XPipeline, or ControlNetUnion, or Adapter for T2I-Adapters, as the infix."""
    stem = family_stem(own.__name__)
    suffixes = {Task.TEXT: ("",), Task.REDRAW: ("Img2Img",), Task.INPAINT: ("Inpaint", "Inpainting")}
    names = (f"{stem}{infix}{suffix}Pipeline" for suffix in suffixes.get(task, ()))
    return next((found for name in names if (found := getattr(diffusers, name, None)) is not None), None)


def task_classes(own: type[Any]) -> Mapping[Task, type[Any]]:
    """Return the class that draws each task on the weights of a checkpoint whose model_index.json names `own`.

    An XPipeline has siblings for the same weights, XImg2ImgPipeline and XInpaintPipeline. A checkpoint for one task
    alone names that task's class, such as an inpainting checkpoint; whether its siblings work with its weights is found
    when they are tried (warmup). A class without siblings that draws from text starts late (late_start.py).
    """
    if is_modular(own):
        return modular_tasks(own)
    call, has = inspect.signature(own.__call__).parameters, partial(hasattr, diffusers)
    names = family_of(own.__name__).drawn_by(own.__name__, call, dir(own), has)
    others = {task: getattr(diffusers, name) for task, name in names.items() if name != own.__name__}
    return MappingProxyType(dict.fromkeys(names, own) | others)


def check_conditioning(spec: CheckpointSpec, own: type[Any], tasks: Mapping[Task, type[Any]]) -> None:
    """Check that the class has a pipeline for the spec's conditioning. Raises CheckpointError where it has one of
    another mode instead."""
    if MODES[spec.conditioning].task in tasks:
        return
    if fitting := [name for name, mode in MODES.items() if mode.task in tasks]:
        raise CheckpointError(
            f'{spec.path}: {own.__name__} does not take references by conditioning = "{spec.conditioning}"; write '
            f'conditioning = "{fitting[0]}"'
        )
