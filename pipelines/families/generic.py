"""The hooks of a family of pipelines, and the guesses for a class that no family's file knows.

A guess goes by the signature of the class's call and by configs, never by a name. The capabilities that it announces
are tried before they are served (pipelines/images/warmup), so a family needs a file of its own only where a guess is
wrong or not to be had. Nothing here needs torch: the catalog asks before anything is loaded.
"""

import inspect
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from types import MappingProxyType
from typing import Any, ClassVar, Final

from pipelines.families.task import Task

Call = Mapping[str, Parameter]  # the parameters of a pipeline's call, by name
Config = Mapping[str, Any]

SUFFIXES: Final[Mapping[Task, str]] = {Task.REDRAW: "Img2Img", Task.INPAINT: "Inpaint"}
ODD: Final = 33  # a side of so many multiples is none of a larger multiple, and above the least size of any pipeline
LARGEST: Final = 4  # times the assumed multiple
UPCAST: Final = "force_upcast"  # of a codec's config


@dataclass(frozen=True, slots=True)
class Mark:
    """A tensor in a single file that says how its weights were trained."""

    example: str  # a published checkpoint that was trained so, for the operator
    config_key: str | None = None  # what the denoiser's config of the folder beside it must have then


class Family:
    """A family of pipelines. Each attribute and method is a hook: a subclass in a file of this package changes those
    that are wrong for its classes."""

    # Patterns of fnmatch for the names of pipeline classes. The longest pattern that matches a name decides
    classes: ClassVar[tuple[str, ...]] = ()
    # Why calls can't draw with these classes, for the operator; None for those that may
    refused: ClassVar[str | None] = None
    # Libraries that the classes need beside those that are always there, by the names that pip takes
    libraries: ClassVar[tuple[str, ...]] = ()

    # -- arguments of the call

    # The argument for classifier-free guidance, also in the examples of a checkpoint's card
    guidance_argument: ClassVar[str] = "guidance_scale"
    # The argument for references that the denoiser attends to
    references_argument: ClassVar[str] = "image"
    # Guidance is an input of the denoiser: it costs no second pass, and a checkpoint of few steps keeps it
    embeds_guidance: ClassVar[bool] = False

    # What a call is given where there is no negative prompt
    no_negative_prompt: ClassVar[str | None] = None
    # Arguments that every call is given, where it takes them
    always: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def guidance(self, scale: float, negative_prompt: str, steps: int) -> dict[str, Any]:
        """Return the arguments for guidance and a negative prompt, which may be empty, in a call of so many steps."""
        return {self.guidance_argument: scale, "negative_prompt": negative_prompt or self.no_negative_prompt}

    def takes_guidance(self, call: Call, config: Config, denoiser_config: Config) -> bool:
        """Return whether guidance has an effect. Distilled pipelines accept it and ignore it. `config` is that of the
        pipeline: model_index.json."""
        return self.guidance_argument in call and not config.get("is_distilled")

    def takes_negative_prompt(self, call: Call, config: Config) -> bool:
        """Return whether a negative prompt has an effect."""
        return "negative_prompt" in call and not config.get("is_distilled")

    def prompt(self, text: str, references: int) -> str:
        """Return the text that the call is given for a prompt beside so many references."""
        return text

    def reference_arguments(self, call: Call, first: Any, others: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments for references that the denoiser attends to, as Pillow images: a list where the call
        takes one, which some need, else the image."""
        name = self.references_argument
        takes_list = "list" in str(call[name].annotation).lower()
        return {name: [first, *others] if others or takes_list else first}

    def max_sequence_length(self, call: Call, pipeline: Any) -> int | None:
        """Return the tokens that prompts are padded to; None for the call's default. The limit of the only tokenizer,
        if it is below the default: some denoisers attend to the padding, which costs time. A processor in the place of
        a tokenizer has no limit."""
        lengths = call.get("max_sequence_length")
        limit = getattr(getattr(pipeline, "tokenizer", None), "model_max_length", None)
        if lengths is None or not isinstance(lengths.default, int) or limit is None or hasattr(pipeline, "tokenizer_2"):
            return None
        return int(min(lengths.default, limit))

    # -- sizes

    # The call reads references in whatever size they have: they are scaled to the native area before it
    reads_any_size: ClassVar[bool] = False

    def size_arguments(self, width_px: int, height_px: int) -> dict[str, Any]:
        """Return the arguments that make the call draw exactly this size."""
        return {"width": width_px, "height": height_px}

    def prepared(self, pipeline: Any, width_px: int, height_px: int) -> Any:
        """Return the pipeline, ready to draw exactly this size. It is of this call alone."""
        return pipeline

    # The number of px that both sides are rounded to, where neither the pipeline's parts nor its check say so
    multiple_px: ClassVar[int | None] = None

    def size_multiple(self, pipeline: Any) -> int:
        """Return the number of px that both sides of an image must be multiples of: a latent of a U-Net, a patch of 2 x
        2 of a transformer, or twice or four times as much where the pipeline's own check refuses less.

        Nothing is drawn. A check that refuses all of these sizes has another reason, and so says nothing about them.
        """
        if self.multiple_px is not None:
            return self.multiple_px
        latent_px = int(getattr(pipeline, "vae_scale_factor", 8))
        assumed = latent_px if hasattr(pipeline, "unet") else 2 * latent_px
        multiples = [assumed * 2**power for power in range(LARGEST.bit_length())]
        return next((multiple for multiple in multiples if _accepts(pipeline, multiple * ODD)), assumed)

    # -- what a call returns

    # What the call is asked for: "np" of classes whose tensors are not from 0 to 1
    output_type: ClassVar[str] = "pt"

    # The argument for the number of layers, of a call that takes a reference apart: all images of a job are its layers
    layers: ClassVar[str | None] = None

    def images(self, output: Any) -> Any:
        """Return the images in a call's output, as that has them: a tensor of shape (1, channels, height, width), or a
        list of one. The field has one of two names. Layers are (layers, channels, height, width)."""
        return output.images if hasattr(output, "images") else output.image

    # -- tasks

    def own_task(self, call: Call) -> Task:
        """Return the task that a pipeline draws by itself."""
        if "mask_image" in call:
            return Task.INPAINT
        if self.references_argument not in call:
            return Task.TEXT
        return Task.REDRAW if "strength" in call else Task.NATIVE

    def draws_text(self, call: Call) -> bool:
        """Return whether a class draws from a prompt alone."""
        task, references = self.own_task(call), call.get(self.references_argument)
        needs_none = references is not None and references.default is not Parameter.empty
        return task is Task.TEXT or (task is Task.NATIVE and needs_none)

    # What the names of the classes end in, behind what tells their tasks apart
    name_ending: ClassVar[str] = "Pipeline"
    # False of a class whose latents are of another form than `starts_late` can see
    may_start_late: ClassVar[bool] = True

    def siblings(self, class_name: str) -> Mapping[Task, str]:
        """Return the names that classes for other tasks on the same weights would have: beside XPipeline,
        XImg2ImgPipeline and XInpaintPipeline."""
        stem = family_stem(class_name, self.name_ending)
        return {task: f"{stem}{suffix}{self.name_ending}" for task, suffix in SUFFIXES.items()}

    def starts_late(self, call: Call, methods: Container[str]) -> bool:
        """Return whether a call that only draws from text can start from an image's latents
        (pipelines/images/denoising/late_start.py): it prepares them itself, and does not pack them into rows."""
        takes_latents = self.own_task(call) is Task.TEXT and {"latents", "num_inference_steps"} <= call.keys()
        return self.may_start_late and takes_latents and "prepare_latents" in methods and "_pack_latents" not in methods

    def drawn_by(
        self, class_name: str, call: Call, methods: Container[str], has: Callable[[str], bool]
    ) -> dict[Task, str]:
        """Return the names of the classes that draw each task on the weights of a class: itself, then those of its
        siblings that the library `has`, then itself again where it starts late."""
        own = [self.own_task(call), *([Task.TEXT] if self.draws_text(call) else [])]
        siblings = {task: name for task, name in self.siblings(class_name).items() if has(name)}
        late = (Task.REDRAW, Task.INPAINT) if self.starts_late(call, methods) else ()
        return dict.fromkeys(late, class_name) | siblings | dict.fromkeys(own, class_name)

    # -- codecs

    def casts_codec(self, codec_config: Config, pipeline_class: type[Any]) -> bool:
        """Return whether the class's calls compute passes of the codec in float32, and so cast a module that the runs
        of all tasks share. Most configs ask for it by default, and most classes have no code that looks."""
        methods = (inspect.unwrap(method) for _, method in inspect.getmembers(pipeline_class, inspect.isfunction))
        return bool(codec_config.get(UPCAST)) and any(UPCAST in method.__code__.co_names for method in methods)

    # -- shared forward passes

    # Whether calls can take turns: not where one changes the denoiser for as long as it draws
    at_once: ClassVar[bool] = True
    # Why runs can't share a forward pass of the denoiser, for the operator; None where the first shared one may show it
    separate_passes: ClassVar[str | None] = None

    # -- what files say

    # By class of a model, a regex of weights that files have and the model does without
    unneeded_weights: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # By name, tensors without values that say something of a single file
    marks: ClassVar[Mapping[str, Mark]] = MappingProxyType({})
    # How the family is called in names of files, in lower case
    short_names: ClassVar[tuple[str, ...]] = ()
    # Words in names of files, in lower case, by which a checkpoint of the family was distilled to few steps
    distilled_words: ClassVar[tuple[str, ...]] = ()

    # By word for a method of distillation, how its adapters and files are sampled: values of the scheduler's config
    few_steps_noise: ClassVar[Mapping[str, Mapping[str, float]]] = MappingProxyType({})
    # By such a word, the weight that its adapters are added with, where it is not 1
    adapter_weights: ClassVar[Mapping[str, float]] = MappingProxyType({})

    def signs_of_few_steps(self, denoiser_config: Config) -> Iterator[str]:
        """Yield the signs in the denoiser's config that a checkpoint was distilled to few steps, for the operator."""
        yield from ()

    def predicts_v(self, architecture: str) -> bool:
        """Return whether files of this `modelspec.architecture` were trained to predict v."""
        return False


def family_stem(class_name: str, ending: str = "Pipeline") -> str:
    """Return X of XPipeline, XImg2ImgPipeline and XInpaintPipeline."""
    stem = class_name.removesuffix(ending)
    for suffix in SUFFIXES.values():
        stem = stem.removesuffix(suffix)
    return stem


def _accepts(pipeline: Any, side_px: int) -> bool:
    """Return whether the pipeline's check of arguments lets a square of this side through."""
    check = getattr(pipeline, "check_inputs", None)
    accepted = inspect.signature(check).parameters if check is not None else {}
    if check is None or not {"prompt", "height", "width"} <= accepted.keys():
        return True
    arguments = {name: None for name, parameter in accepted.items() if parameter.default is parameter.empty}
    try:
        check(**{**arguments, "prompt": "", "height": side_px, "width": side_px})
    except (ValueError, TypeError, AttributeError):  # also of arguments that it needs and that are None here
        return False
    return True
