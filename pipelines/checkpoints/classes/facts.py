"""What a pipeline's class can do, or why it can't draw images for calls: before anything is loaded."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter
from pathlib import Path
from typing import Any, Final, Literal

from pipelines.checkpoints.classes.index import class_of, component_names, is_left_out
from pipelines.checkpoints.classes.source import PipelineSource, installed_pipelines, is_known, modular_class
from pipelines.checkpoints.work.plan import MODES
from pipelines.families.generic import Call, Config, Family
from pipelines.families.registry import family_of
from pipelines.families.task import Task
from pipelines.protocol.images import CheckpointSpec, Conditioning
from pipelines.protocol.messages import Capabilities

GREY, RGBA = 1, 4  # channels
ReadMode = Literal["RGB", "RGBA", "L"]
UPSCALES: Final = Capabilities(  # of an upscaler
    text=False, references=0, mask=False, second_pass=True, negative_prompt=False, guidance=False, any_steps=False,
    prompt=False,
)  # fmt: skip
OWN_LIBRARIES: Final = ("diffusers", "transformers")
IMAGES: Final = frozenset({"images", "image"})  # fields of outputs that have images
OTHERS: Final = {  # fields of other outputs, or the ends of their names -> what these classes do
    "frames": "draws videos, and Darkroom images",
    "video": "draws videos, and Darkroom images",
    "videos": "draws videos, and Darkroom images",
    "audios": "makes sound, and Darkroom images",
    "text": "writes text",
    "texts": "writes text",
    "sequences": "writes text",
    "embeds": "prepares embeddings for another pipeline",
    "embeddings": "prepares embeddings for another pipeline",
    "prediction": "estimates a map of an image, such as its depth",
}
DENOISERS: Final = frozenset({"unet", "transformer"})
ONLY_WITH: Final = {  # parts -> what the images are drawn with
    "controlnet": "it needs a control image with every call: serve the checkpoint without its ControlNet, and name "
    "that in [[controlnets]]",
    "adapter": "it needs a control image with every call: serve the checkpoint without its T2I-Adapter, and name that "
    "in [[t2i_adapters]]",
}
GIVEN: Final = frozenset({"prompt", "image", "mask_image", "control_image"})  # what calls have


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """What the class that an index names takes and draws, and what keeps it from being built of the index's parts."""

    call: Call  # empty if the class is not known
    conditioning: Conditioning
    capabilities: Capabilities | None  # as the classes announce them; warmup tries them
    problems: tuple[str, ...]


def read_class(index: Mapping[str, Any], folder: Path | None, codec: Config, denoiser_config: Config) -> ClassFacts:
    """Return the facts about the class that an index names, with the configs of its codec and its denoiser. `folder` is
    the one that the problems name."""
    source, class_name = installed_pipelines(), index.get("_class_name") or ""
    call, tasks = _call_and_tasks(class_name, codec, source)
    unknown = [f"{folder}: the installed diffusers has no pipeline {class_name}"] if class_name and call is None else []
    problems = (*unknown, *class_problems(index, folder, source))
    conditioning: Conditioning = "native" if Task.NATIVE in tasks else "img2img"
    if not class_name or not call:
        return ClassFacts({}, conditioning, None, problems)
    spec = CheckpointSpec("", Path(), None, "", conditioning, MODES[conditioning].max_references)
    announced = declared_capabilities(family_of(class_name), call, tasks, spec, index, denoiser_config)
    return ClassFacts(call, conditioning, replace(announced, transparent=draws_alpha(codec)), problems)


def _call_and_tasks(class_name: str, codec: Config, source: PipelineSource) -> tuple[Call | None, frozenset[Task]]:
    """Return the parameters of a class's call, None if the library has no such class, with the tasks that the class and
    its siblings draw. A codec with means has latents of another scale, at which no image can start late."""
    call = source.parameters(class_name)
    if call is None and class_name and (modular := modular_class(source.folder, class_name)) is not None:
        return modular.inputs, modular.tasks
    methods = source.methods(class_name) if codec.get("latents_mean") is None else ()
    return call, frozenset(family_of(class_name).drawn_by(class_name, call or {}, methods, source.has))


def declared_capabilities(
    family: Family, call: Call, tasks: Container[Task], spec: CheckpointSpec, config: Config, denoiser_config: Config
) -> Capabilities:
    """Return the capabilities that the pipeline classes announce, before they are tried, without those of its codec.
    `call` is that of the checkpoint's own class, `config` that of the pipeline."""
    return Capabilities(
        text=Task.TEXT in tasks,
        references=spec.max_references if MODES[spec.conditioning].task in tasks else 0,
        mask=Task.INPAINT in tasks,
        second_pass=Task.REDRAW in tasks or Task.INPAINT in tasks,
        negative_prompt=family.takes_negative_prompt(call, config),
        guidance=family.takes_guidance(call, config, denoiser_config),
        any_steps=True,
        prompt="prompt" in call,
        layers=family.layers is not None,
        at_once=family.at_once,
    )


def read_mode(codec: Mapping[str, Any]) -> ReadMode:
    """Return the mode in which a codec with this config takes an image. Without a codec, images are colours."""
    channels = _first_value(codec, "in_channels", "input_channels")
    return "RGBA" if channels == RGBA else "L" if channels == GREY else "RGB"


def draws_alpha(codec: Mapping[str, Any]) -> bool:
    """Return whether a codec with this config draws images with an alpha channel."""
    return _first_value(codec, "out_channels", "input_channels") == RGBA


def _first_value(codec: Mapping[str, Any], *names: str) -> object:
    """Return the value of the first of these names that a config has: some codecs call both sides by one name."""
    return next((codec[name] for name in names if name in codec), None)


def codec_scale(codec: Config) -> int:
    """Return how many pixels a latent has along a side, computed from a codec's config as diffusers' pipelines do; 8 if
    it does not say."""
    for key in ("block_out_channels", "encoder_block_out_channels"):
        if isinstance(blocks := codec.get(key), list):
            return int(2 ** (len(blocks) - 1))
    doublings = codec.get("temperal_downsample")  # sic, of video codecs
    return int(2 ** len(doublings)) if isinstance(doublings, list) else 8


def why_refused(class_name: str, source: PipelineSource) -> str | None:
    """Return why the class draws nothing for calls here, as a sentence that begins with its name; None if it may draw:
    warmup tries that. A class that the library does not have is not judged."""
    call = source.parameters(class_name)
    if call is not None:
        return next(_reasons(class_name, call, source), None)
    modular = modular_class(source.folder, class_name)
    if modular is not None and modular.outputs and not modular.outputs & IMAGES:
        return f"{class_name} {_other_output(modular.outputs, modular.inputs)}"
    why = family_of(class_name).refused
    return None if why is None else f"{class_name}: {why}"


def _reasons(class_name: str, call: Call, source: PipelineSource) -> Iterator[str]:
    fields = source.output_fields(class_name)
    if "num_frames" in call or (fields and not fields & IMAGES):
        yield f"{class_name} {_other_output(fields, call)}"
    if source.is_unmaintained(class_name):
        yield f"{class_name}: diffusers no longer maintains it"
    parts = source.constructor(class_name)
    if any("Onnx" in str(part.annotation) for part in parts.values()):
        yield f"{class_name}: its parts are ONNX files, which are not loaded"
    if "FlaxDiffusionPipeline" in source.ancestors(class_name):
        yield f"{class_name}: its parts are of Flax, and not of torch"
    yield from (f"{class_name}: {why}" for part, why in ONLY_WITH.items() if part in parts)
    if (why := family_of(class_name).refused) is not None:
        yield f"{class_name}: {why}"
    if not DENOISERS & parts.keys():
        yield f"{class_name}: it has neither a U-Net nor a transformer"
    if (why := _missing_input(class_name, call)) is not None:
        yield f"{class_name}: {why}"


def _other_output(fields: frozenset[str], call: Call) -> str:
    if "num_frames" in call:
        return OTHERS["frames"]
    found = (OTHERS[word] for field in sorted(fields) if (word := field.rpartition("_")[2]) in OTHERS)
    return next(found, f"returns {' and '.join(sorted(fields))}, and no images")


def _missing_input(class_name: str, call: Call) -> str | None:
    """Return which input the class needs that calls do not have."""
    given = GIVEN | {family_of(class_name).references_argument}
    required = [name for name, parameter in call.items() if parameter.default is Parameter.empty]
    if others := [name for name in required if name not in given]:
        return f"it needs {others[0]}, which calls here do not have"
    if "prompt" in call or required:
        return None
    prompts = [name for name in call if name.endswith("_prompt") and "negative" not in name]
    return f"it needs {prompts[0]}, which calls here do not have" if prompts else "it takes no prompt"


def class_problems(index: Mapping[str, Any], folder: Path | None, source: PipelineSource) -> Iterator[str]:
    """Yield messages about what keeps the pipeline class from being built of the components that the index names."""
    class_name = str(index.get("_class_name"))
    why = why_refused(class_name, source) if index else None
    problems = [f"{folder}: {why}"] if why is not None else []
    problems += _foreign_parts(index, folder, source)
    yield from problems or _absent_parts(index, folder, source)


def _foreign_parts(index: Mapping[str, Any], folder: Path | None, source: PipelineSource) -> Iterator[str]:
    """Yield the components that can't be loaded, as messages: those of libraries and classes that are not here, and
    nulls. A folder of diffusers' own pipelines may be a library too."""
    components = source.components(str(index.get("_class_name")))
    for name in (name for name, entry in index.items() if entry is None and name in components):
        yield f"{folder}/model_index.json: {name} is null, which diffusers does not read: write [null, null]"
    for name in component_names(index):
        library = index[name][0]
        own = source.folder is not None and (source.folder / "pipelines" / str(library)).is_dir()
        if library not in OWN_LIBRARIES and library is not None and not own:
            yield f"{folder}: {name} is of the library {library}, whose code is not loaded"
        elif not is_known(str(library), class_of(index[name])):
            class_name = class_of(index[name])
            yield f"{folder}: {name} is of the class {class_name}, which the installed diffusers does not have"


def _absent_parts(index: Mapping[str, Any], folder: Path | None, source: PipelineSource) -> Iterator[str]:
    """Yield the components without which the pipeline's class does nothing, as messages. Of those that are left out on
    purpose, and so passed as None, that is the denoiser: SD3 draws without its T5."""
    class_name = str(index.get("_class_name"))
    for name in sorted(source.required_components(class_name)):
        if name not in index or (is_left_out(index[name]) and name in DENOISERS):
            named = "leaves out" if name in index else "does not name"
            yield f"{folder}/model_index.json {named} {name}, which {class_name} needs"
