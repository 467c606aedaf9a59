"""Why a pipeline can't be built and draw images for calls: by its class's source and its index, before anything is
loaded.

It is decided from the arguments of a class's call, the parts of its constructor and the fields of its output, so that a
class that the library gains is judged alike; what these don't say is in its family's file.
"""

from collections.abc import Iterator, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Any, Final

from pipelines.catalog.call_signature import PipelineSource
from pipelines.catalog.components import is_known
from pipelines.catalog.modular import modular_class
from pipelines.catalog.pipeline_index import class_of, component_names, is_left_out
from pipelines.families.generic import Call
from pipelines.families.registry import family_of

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
