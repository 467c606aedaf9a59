"""What a pipeline class can do: by its call's signature and its siblings in diffusers, never by a list of names."""

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import diffusers

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.catalog.conditioning import MODES, Task
from pipelines.protocol.images import CheckpointSpec

SUFFIXES: Final = {Task.REDRAW: "Img2Img", Task.INPAINT: "Inpaint"}


def task_classes(own: type[Any]) -> Mapping[Task, type[Any]]:
    """The class that draws each task on the weights of a checkpoint whose model_index.json names `own`.

    An XPipeline has siblings for the same weights, XImg2ImgPipeline and XInpaintPipeline. A checkpoint for one task
    alone names that task's class, such as an inpainting checkpoint of SDXL; what its siblings make of its weights is
    found when they are tried (warmup).
    """
    accepted = inspect.signature(own.__call__).parameters
    task = _own_task(accepted)
    classes = {task: own}
    if task is Task.NATIVE and accepted["image"].default is not inspect.Parameter.empty:
        classes[Task.TEXT] = own
    stem = own.__name__.removesuffix("Pipeline")
    for suffix in SUFFIXES.values():
        stem = stem.removesuffix(suffix)
    for sibling, suffix in SUFFIXES.items():
        if (found := getattr(diffusers, f"{stem}{suffix}Pipeline", None)) is not None:
            classes.setdefault(sibling, found)
    return MappingProxyType(classes)


def takes_negative_prompt(own: type[Any], config: Mapping[str, Any]) -> bool:
    """Whether a negative prompt has an effect."""
    accepted = inspect.signature(own.__call__).parameters
    return "negative_prompt" in accepted and not _embeds_guidance(accepted) and not config.get("is_distilled")


def takes_guidance(own: type[Any], config: Mapping[str, Any], denoiser_config: Mapping[str, Any]) -> bool:
    """Whether guidance has an effect. Distilled pipelines accept it and ignore it, and so does a denoiser of FLUX.1's
    kind without an input for it, as FLUX.1 [schnell] is."""
    accepted = inspect.signature(own.__call__).parameters
    if config.get("is_distilled") or not {"guidance_scale", "true_cfg_scale"} & accepted.keys():
        return False
    return not (_embeds_guidance(accepted) and denoiser_config.get("guidance_embeds") is False)


def _own_task(accepted: Mapping[str, inspect.Parameter]) -> Task:
    if "mask_image" in accepted:
        return Task.INPAINT
    if "image" not in accepted:
        return Task.TEXT
    return Task.REDRAW if "strength" in accepted else Task.NATIVE


def _embeds_guidance(accepted: Mapping[str, inspect.Parameter]) -> bool:
    """As in FLUX.1's call: guidance is an input of the denoiser, and true_cfg_scale is off."""
    scale = accepted.get("guidance_scale")
    return "true_cfg_scale" in accepted and scale is not None and scale.default is not None


def check_conditioning(spec: CheckpointSpec, own: type[Any], tasks: Mapping[Task, type[Any]]) -> None:
    """Raises CheckpointError for a mode of which the class has no pipeline, where it has one of another mode."""
    if MODES[spec.conditioning].task in tasks:
        return
    if fitting := [name for name, mode in MODES.items() if mode.task in tasks]:
        raise CheckpointError(
            f'{spec.path}: {own.__name__} does not take references by conditioning = "{spec.conditioning}"; write '
            f'conditioning = "{fitting[0]}"'
        )
