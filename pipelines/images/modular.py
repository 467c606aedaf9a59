"""Modular pipelines of diffusers, in the form of its other pipelines.

They are made of blocks, and differ in three things, which the classes made here hide: their components are set after
they are made, their arguments are their blocks' inputs, and their call returns the blocks' state. What turns and shared
passes need sits in the denoiser and the codec, which are the same modules; nothing is called after a step, so that the
steps of the run's own scheduler are watched (step_observer.py).
"""

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from inspect import Parameter
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

import diffusers
import transformers

from pipelines.checkpoints.classes.index import component_names, model_index
from pipelines.checkpoints.classes.source import blocks_tasks
from pipelines.families.registry import family_of
from pipelines.families.task import Task

GUIDANCE: Final = "guidance_scale"
OVERLAY: Final = "mask_overlay_kwargs"  # an input of blocks that paste what a mask leaves out
IMAGES: Final = ("images", "image")  # how blocks call what they have drawn
LIBRARIES: Final[Mapping[str, Any]] = {"diffusers": diffusers, "transformers": transformers}

# It writes a traceback of every error that leaves a block, such as that of a cancelled run; callers write their own
logging.getLogger("diffusers.modular_pipelines.modular_pipeline").setLevel(logging.CRITICAL)
logging.getLogger("diffusers.guiders.guider_utils").setLevel(logging.ERROR)  # warns at each call that guiders are new


def pipeline_class_of(index: Mapping[str, Any]) -> type[Any] | None:
    """Return the class that an index names, of the installed diffusers, or one that is called as others are for a
    modular pipeline; None if there is no such pipeline."""
    found = getattr(diffusers, index["_class_name"], None)
    if not isinstance(found, type) or not hasattr(found, "from_pretrained"):
        return None
    if not issubclass(found, diffusers.ModularPipeline):
        return found
    modular: Any = found
    named = getattr(diffusers, str(index.get("_blocks_class_name")), None)
    blocks = (
        named if getattr(named, "block_classes", None) else getattr(diffusers, str(modular.default_blocks_name), None)
    )
    return None if blocks is None else _callable_class(modular, blocks, frozenset(component_names(index)))


def is_modular(pipeline_class: type[Any]) -> bool:
    """Return whether a class is one of those that are made here."""
    return issubclass(pipeline_class, diffusers.ModularPipeline)


def modular_tasks(pipeline_class: type[Any]) -> Mapping[Task, type[Any]]:
    """Return the tasks that a modular pipeline draws, each by the class itself: its blocks choose their way by the
    inputs that they get."""
    blocks = pipeline_class.make_blocks()
    named = (each for each in blocks.inputs if each.name)
    inputs = {each.name: _parameter(each.name, Parameter.empty if each.required else None) for each in named}
    try:
        workflows = blocks.available_workflows
    except NotImplementedError:  # its author names none
        workflows = ()
    return MappingProxyType(dict.fromkeys(blocks_tasks(inputs, workflows), pipeline_class))


@cache
def _callable_class(modular: type[Any], blocks_class: type[Any], present: frozenset[str]) -> type[Any]:
    """Make the class of a modular pipeline with these blocks, whose constructor and call have signatures. A step all of
    whose components the index leaves out, such as a prompt upsampler, is left out."""

    def make_blocks() -> Any:
        blocks = blocks_class()
        for name, step in list(blocks.sub_blocks.items()):
            needed = {spec.name for spec in step.expected_components if _is_loaded(spec)}
            if needed and not needed & present:
                blocks.sub_blocks.pop(name)
        return blocks

    blocks = make_blocks()
    loaded = [spec.name for spec in blocks.expected_components if _is_loaded(spec)]
    names = tuple(dict.fromkeys([*loaded, "scheduler"]))
    settings = tuple(spec.name for spec in blocks.expected_configs)

    def __init__(self: Any, **parts: Any) -> None:
        modular.__init__(self, blocks=make_blocks())
        self.register_components(**{name: part for name, part in parts.items() if name in names})
        self.register_to_config(**{name: value for name, value in parts.items() if name in settings})

    def __call__(self: Any, **arguments: Any) -> SimpleNamespace:
        return _draw(self, modular, arguments)

    inputs = [_parameter(each.name, each.default, each.type_hint) for each in blocks.inputs if each.name]
    is_guided = "guider" in {spec.name for spec in blocks.expected_components}
    extra = [family_of(modular.__name__).guidance_argument] if is_guided else []
    taken = {each.name for each in inputs}
    inputs += [_parameter(name) for name in extra if name not in taken]
    __init__.__signature__ = _signature([_parameter(name) for name in (*names, *settings)])  # type: ignore[attr-defined]
    __call__.__signature__ = _signature(inputs)  # type: ignore[attr-defined]
    own = {
        "__init__": __init__,
        "__call__": __call__,
        "make_blocks": staticmethod(make_blocks),
        "components": property(lambda self: {name: getattr(self, name, None) for name in names}),
        "from_pretrained": classmethod(_from_folder),
        "set_progress_bar_config": lambda self, **options: _set_progress(self._blocks, options),
    }
    return type(modular.__name__, (modular,), own)


def _is_loaded(spec: Any) -> bool:
    return bool(spec.default_creation_method == "from_pretrained")


def _signature(parameters: Sequence[Parameter]) -> inspect.Signature:
    return inspect.Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *parameters])


def _parameter(name: str, default: Any = None, annotation: Any = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _from_folder(cls: type[Any], /, folder: Path, **options: Any) -> Any:
    """Load the components of a folder that `options` do not have: those without weights. Nothing but the folder is
    read, whatever repositories its index names."""
    index = model_index(Path(folder))
    accepted = inspect.signature(cls.__init__).parameters
    parts: dict[str, Any] = {name: value for name, value in {**index, **options}.items() if name in accepted}
    for name in (each for each in component_names(index) if each in accepted and each not in options):
        library, class_name = index[name]
        kind = getattr(LIBRARIES[library], class_name)
        parts[name] = kind.from_pretrained(Path(folder) / name, local_files_only=True)
    return cls(**{name: part for name, part in parts.items() if part != [None, None]})


def _draw(pipeline: Any, modular: type[Any], arguments: dict[str, Any]) -> SimpleNamespace:
    """Run the blocks, and return what they drew as other pipelines do."""
    if getattr(pipeline, "guider", None) is not None:
        _set_guidance(pipeline, arguments)
    if "mask_image" in arguments and OVERLAY in {each.name for each in pipeline.blocks.inputs}:
        arguments["output_type"] = "pil"  # its overlay is of Pillow images
    state = modular.__call__(pipeline, **arguments)
    return SimpleNamespace(images=next((found for name in IMAGES if (found := state.get(name)) is not None), None))


def _set_guidance(pipeline: Any, arguments: dict[str, Any]) -> None:
    """Give a run's guider its scale. Blocks guide away from no prompt at all only if they are told so."""
    inputs, name = {each.name for each in pipeline.blocks.inputs}, family_of(type(pipeline).__name__).guidance_argument
    scale = arguments.get(name) if name in inputs else arguments.pop(name, None)
    if scale is not None and GUIDANCE in pipeline.guider.config:
        pipeline.guider = pipeline.guider.new(guidance_scale=scale)
    if "negative_prompt" in inputs:
        arguments.setdefault("negative_prompt", "")


def _set_progress(blocks: Any, options: Mapping[str, Any]) -> None:
    """Set the progress bars of all loops among the blocks."""
    inner: Iterable[Any] = blocks.sub_blocks.values()
    for block in inner:
        if hasattr(block, "set_progress_bar_config"):
            block.set_progress_bar_config(**options)
        _set_progress(block, options)
