"""Sampling values and areas that fit a checkpoint: from its card, its configs and its class's own defaults.

Nothing here knows the name of a checkpoint. Each value comes with where it was found, for the operator to judge.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pipelines.checkpoints.classes.facts import codec_scale
from pipelines.checkpoints.classes.source import PipelineSource, installed_pipelines
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.folder.versions import files_version
from pipelines.checkpoints.inspection.findings import Inspection, inspect_checkpoint
from pipelines.checkpoints.inspection.hints import Description, NameHints
from pipelines.checkpoints.work.plan import MODES
from pipelines.families.registry import family_of
from pipelines.protocol.images import (
    UPSCALER_TILE_PX,
    CheckpointSpec,
    Enlarge,
    SamplingDefaults,
    Scalar,
    SchedulerConfig,
)

FoundCard = tuple[Description, str]
Setting = float | str | Mapping[str, Scalar] | None  # of a catalog file; None where it has no such key

FEW_STEPS = 4  # of a checkpoint that is distilled, and whose card does not say
FIRST_ORDER: Final = "EulerDiscreteScheduler"
MULTISTEP: Final = frozenset({"PNDMScheduler"})  # whose first steps only warm it up
FALLBACK_STEPS, FALLBACK_GUIDANCE = 30, 4.0
UNCHECKED = "not checked for distillation"  # of a class's defaults: distilled checkpoints have the same class
UNSURE = ": check it"
OWN_MAP = "map"  # how requests call the map that a checkpoint draws from with every call, unless the operator says
FALLBACK_AREA_PX = 1024 * 1024
MAX_AREA_PX = 2048 * 2048


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a catalog file, and where it was found."""

    value: float
    found: str


@dataclass(frozen=True, slots=True)
class Noise:
    """The scheduler for the catalog file, where it is not the one of the checkpoint's folder, and the changes of its
    config."""

    scheduler: str | None = None
    config: SchedulerConfig = ()
    found: str = ""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Values of a catalog file that depend on the checkpoint."""

    conditioning: str
    steps: Value
    guidance: Value
    native_area_px: Value
    max_area_px: Value
    enlarge: Enlarge  # "resize" for a class that can't redraw a part of an image
    noise: Noise
    control_map: str | None = None  # a name for the map that the checkpoint draws from with every call

    @property
    def values(self) -> Mapping[str, Setting]:
        """Return the values by their keys in catalog files."""
        return {
            "conditioning": self.conditioning,
            "native_area_px": int(self.native_area_px.value),
            "max_area_px": int(self.max_area_px.value),
            "steps": int(self.steps.value),
            "sampling.guidance": self.guidance.value,
            "sampling.scheduler": self.noise.scheduler,
            "sampling.scheduler_config": dict(self.noise.config) or None,
            "control_map": self.control_map,
        }

    @property
    def found(self) -> Mapping[str, str]:
        """Return where values were found, by their keys in catalog files: the comments that `add` writes."""
        values = {
            "native_area_px": self.native_area_px,
            "max_area_px": self.max_area_px,
            "steps": self.steps,
            "sampling.guidance": self.guidance,
        }
        noise = dict.fromkeys(("sampling.scheduler", "sampling.scheduler_config"), self.noise.found)
        return {key: value.found for key, value in values.items()} | noise


def suggest(inspection: Inspection, adapters: Iterable[Path] = ()) -> Suggestion:
    """Return the values to write into the checkpoint's catalog file. One of the adapters that every image uses may
    have been distilled to few steps: then it says how images are drawn."""
    if inspection.conditioning == "upscale":
        area = Value(UPSCALER_TILE_PX, "of a tile of the image that is sent: a larger one takes more memory")
        once = Value(1, "a tile takes one pass")
        return Suggestion("upscale", once, Value(1.0, "it has none"), area, area, "redraw", Noise())
    source = installed_pipelines()
    own, distilled = Description.of(inspection.path), _distilled(adapters)
    named, cards = own.hints, list(_cards(inspection, own))
    few = next(_signs_of_few_steps(inspection, named), None)
    if distilled is not None:
        named, cards = replace(distilled.hints, whose="an adapter's"), [(distilled, "README.md of the adapter")]
        few = named.found
    area = _native_area(inspection, source)
    return Suggestion(
        conditioning=inspection.conditioning,
        steps=_steps(inspection, named, cards, few),
        guidance=_guidance(inspection, cards, None if named.guided else few),
        native_area_px=area,
        max_area_px=Value(area.value, "the native area: raise it if the checkpoint draws larger images well"),
        enlarge="redraw" if inspection.capabilities is None or inspection.capabilities.second_pass else "resize",
        noise=_noise(inspection, named, source) if inspection.files.file or distilled else Noise(),
        control_map=OWN_MAP if "control_image" in inspection.signature else None,
    )


def _distilled(adapters: Iterable[Path]) -> Description | None:
    """Return what is written of the first adapter that was distilled to few steps."""
    return next((each for each in map(Description.of, adapters) if each.hints.distilled is not None), None)


def adapter_weight(inspection: Inspection, adapter: Path) -> float:
    """Return the weight that an adapter is added with."""
    method = Description.of(adapter).hints.distilled or ""
    return family_of(inspection.class_name).adapter_weights.get(method, 1.0)


def adapter_notes(spec: CheckpointSpec) -> tuple[str, ...]:
    """Say, for the operator, what an adapter of few steps calls for, if the checkpoint's catalog file draws with
    another guidance or scheduler."""
    adapters = [lora.path for lora in spec.runtime.loras]
    if _distilled(adapters) is None:
        return ()
    suggestion, own = suggest(inspect_checkpoint(CheckpointFiles.of(spec)), adapters), spec.sampling
    noise = suggestion.noise
    follows = noise.scheduler in {None, own.scheduler} and set(noise.config) <= set(own.scheduler_config)
    if follows and (own.guidance == suggestion.guidance.value or max(own.guidance, suggestion.guidance.value) <= 1):
        return ()
    keys = "steps", "sampling.guidance", "sampling.scheduler", "sampling.scheduler_config"
    wanted = {key: suggestion.values[key] for key in keys}
    listed = ", ".join(f"{key} = {json.dumps(value)}" for key, value in wanted.items() if value is not None)
    return (f"{suggestion.steps.found}: images may be better with {listed}",)


def _noise(inspection: Inspection, named: NameHints, source: PipelineSource) -> Noise:
    """Return the scheduler and the values of its config that a single file says, and beside them those that its name,
    or an adapter's, suggests. A folder alone has a scheduler's config of its own."""
    by_file, scheduler = inspection.file_sampling, inspection.config_of("scheduler")
    own = by_file.scheduler or str(scheduler.get("_class_name", ""))
    wanted = named.scheduler or (FIRST_ORDER if named.distilled is not None and own in MULTISTEP else None)
    config, found = dict(by_file.config), [by_file.found] if by_file.found else []
    keys = source.scheduler_keys(own)
    spacing = config.get("timestep_spacing", scheduler.get("timestep_spacing"))
    by_name: dict[str, Scalar] = {}
    if named.predicts_v and config.get("prediction_type", scheduler.get("prediction_type", "epsilon")) == "epsilon":
        by_name["prediction_type"] = "v_prediction"
    if named.distilled is not None and named.scheduler is None and spacing != "trailing":
        by_name["timestep_spacing"] = "trailing"
    trained = family_of(inspection.class_name).few_steps_noise.get(named.distilled or "", {})
    by_name |= {key: value for key, value in trained.items() if scheduler.get(key) != value}
    by_name = {key: value for key, value in by_name.items() if key in keys}
    follows = wanted if "timestep_spacing" in keys and own != wanted else None
    if by_name or follows:
        found.append(named.found)
    return Noise(by_file.scheduler or follows, tuple(sorted((by_name | config).items())), "; ".join(found))


def _steps(inspection: Inspection, named: NameHints, cards: Iterable[FoundCard], few: str | None) -> Value:
    if named.distilled is not None and named.steps is not None:
        return Value(named.steps, named.found)
    in_card = _in_cards(cards, "num_inference_steps")
    if in_card is not None and 1 <= in_card.value <= 200:
        return Value(int(in_card.value), in_card.found)
    if few is not None:
        return Value(FEW_STEPS, few)
    default = _default(inspection, "num_inference_steps")
    if default is not None:
        return Value(int(default), f"the default of {inspection.class_name}, {UNCHECKED}")
    return Value(FALLBACK_STEPS, "a guess: nothing says")


def _guidance(inspection: Inspection, cards: Iterable[FoundCard], few: str | None) -> Value:
    if inspection.capabilities is not None and not inspection.capabilities.guidance:
        return Value(1.0, "the checkpoint draws without guidance")
    family = family_of(inspection.class_name)
    scale = family.guidance_argument
    in_card = _in_cards(cards, scale)
    if in_card is not None and 0 <= in_card.value <= 50:
        return in_card
    if isinstance(in_guider := inspection.config_of("guider").get("guidance_scale"), int | float):
        return Value(float(in_guider), "guider/guider_config.json of the checkpoint")
    default = _default(inspection, scale)
    if few is not None and not family.embeds_guidance:
        return Value(1.0, few)
    if default is not None:
        return Value(float(default), f"the default of {inspection.class_name}, {UNCHECKED}")
    return Value(FALLBACK_GUIDANCE, "a guess: nothing says")


def _native_area(inspection: Inspection, source: PipelineSource) -> Value:
    """Return the area that the file was trained on, or that the class draws when it is called without a size."""
    area_px = inspection.file_sampling.area_px
    if area_px is not None and 4096 <= area_px <= MAX_AREA_PX:
        return Value(area_px, "modelspec.resolution in the file")
    width, height = _default(inspection, "width"), _default(inspection, "height")
    if width is not None and height is not None:
        return Value(width * height, f"the default size of {inspection.class_name}")
    scale = codec_scale(inspection.config_of("vae"))
    in_config = inspection.denoiser_config.get("sample_size")
    in_class = source.default_sample_size(inspection.class_name) if inspection.class_name else None
    for latents, found in ((in_config, "sample_size in the denoiser's config"), (in_class, "the default of its class")):
        sides = latents if isinstance(latents, list) else [latents, latents]
        numbers = [side for side in sides if isinstance(side, int)]
        area_px = math.prod(numbers) * scale**2 if len(numbers) == len(sides) == 2 else 0
        if 4096 <= area_px <= MAX_AREA_PX:
            return Value(area_px, f"{found}, {numbers[0]} latents of {scale} pixels")
    return Value(FALLBACK_AREA_PX, "a guess: nothing says")


def _signs_of_few_steps(inspection: Inspection, named: NameHints) -> Iterator[str]:
    """Yield the signs by which a checkpoint shows that it was distilled."""
    if inspection.index.get("is_distilled"):
        yield "model_index.json: is_distilled"
    yield from family_of(inspection.class_name).signs_of_few_steps(inspection.denoiser_config)
    scheduler = inspection.config_of("scheduler")
    if "original_inference_steps" in scheduler:
        yield f"the scheduler is {scheduler.get('_class_name')}"
    trailing = scheduler.get("timestep_spacing") == "trailing" and scheduler.get("prediction_type") == "epsilon"
    if trailing and not scheduler.get("rescale_betas_zero_snr"):
        yield "the scheduler's config: timestep_spacing is trailing"
    if named.distilled is not None:
        yield named.found


def _default(inspection: Inspection, name: str) -> Any:
    """Return a number that the call has as a default; None if it has none."""
    parameter = inspection.signature.get(name)
    default = parameter.default if parameter is not None else None
    return default if isinstance(default, int | float) else None


def _in_cards(cards: Iterable[FoundCard], argument: str) -> Value | None:
    """Return the value that a card has for an argument of the call, from the first card that has one."""
    for card, found in cards:
        if (value := card.value_of(argument)) is not None:
            several = f"{found.removesuffix(UNSURE)}, one of several examples{UNSURE}"
            return Value(value.value, found if value.is_certain else several)
    return None


def _cards(inspection: Inspection, own: Description) -> Iterator[FoundCard]:
    """Yield the checkpoint's own card; then, of a single file, its base's, which is more like it than its class's
    defaults are, unless the file alone is distilled by its name. It may be another training, and a base may be
    distilled. After each come the words that say where its values were found."""
    yield own, "README.md of the checkpoint"
    if inspection.files.file is None or inspection.folder is None or inspection.folder == inspection.path.parent:
        return
    beside = Description.of(inspection.folder)
    if own.hints.distilled is None or beside.hints.distilled is not None:
        name = "base" if inspection.base is not None else "folder of configs"
        yield beside, f"README.md of the {name}{UNSURE}"


def suggested_spec(name: str, inspection: Inspection, suggestion: Suggestion) -> CheckpointSpec:
    """Return the checkpoint with the suggested values, for drawing with it before it has a catalog file."""
    spec = CheckpointSpec(
        name=name,
        path=inspection.path,
        config=inspection.config,
        family="",
        conditioning=inspection.conditioning,
        max_references=MODES[inspection.conditioning].max_references,
        native_area_px=int(suggestion.native_area_px.value),
        max_area_px=int(suggestion.max_area_px.value),
        sampling=SamplingDefaults(
            guidance=suggestion.guidance.value,
            scheduler=suggestion.noise.scheduler,
            scheduler_config=suggestion.noise.config,
        ),
        base=inspection.base,
    )
    return replace(spec, version=files_version(spec.paths))
