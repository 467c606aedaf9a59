"""The sampling that one file of weights names, and the changes of its scheduler's config that follow from it.

Trainers and ComfyUI say it by tensors without values (`v_pred`, `ztsnr`), by tensors of numbers (`edm_mean`,
`edm_vpred.sigma_max`), and in the header (`modelspec.prediction_type`).
"""

import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pipelines.checkpoints.weight_file.header import Header, Tensor, read_numbers
from pipelines.checkpoints.weight_file.layout import is_metadata_tensor
from pipelines.families.registry import all_families, all_marks
from pipelines.protocol.images import Scalar, SchedulerConfig

SchedulerKeys = Callable[[str], Container[str]]  # what a diffusers class takes
Config = Mapping[str, Any]

PREDICTIONS: Final = {
    **dict.fromkeys(("v", "v_pred", "v_prediction", "vpred", "velocity"), "v_prediction"),
    **dict.fromkeys(("epsilon", "eps", "noise"), "epsilon"),
    **dict.fromkeys(("sample", "x0"), "sample"),
    **dict.fromkeys(("flow", "flow_matching", "flow_prediction", "rectified_flow"), "flow"),
}
DEFAULTS: Final[Config] = {
    "prediction_type": "epsilon",
    "rescale_betas_zero_snr": False,
}  # of diffusers' classes; anything else is a need of the checkpoint
ABLE: Final = "EulerDiscreteScheduler"  # takes all that is said of schedules of betas
EDM: Final = "EDMEulerScheduler"
COSXL: Final[dict[str, Scalar]] = {  # as its authors' pipelines have it, with the file's own sigmas
    "prediction_type": "v_prediction", "sigma_data": 1.0, "sigma_schedule": "exponential",
}  # fmt: skip
COSXL_SIGMAS: Final = {"sigma_max": 120.0, "sigma_min": 0.002}  # unless the file says


@dataclass(frozen=True, slots=True)
class FileSampling:
    """The sampling that the file names, and how it is followed: by `config` over that of the folder's scheduler, which
    becomes one of the class `scheduler` if its own can't. With `problems` it can't be followed."""

    scheduler: str | None = None
    config: SchedulerConfig = ()
    found: str = ""  # by what it says so, for people
    area_px: int | None = None  # of the images that it was trained on
    notes: tuple[str, ...] = ()  # what has no effect
    problems: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """Describe how the file is followed, for the operator."""
        listed = ", ".join(f"{key} = {value}" for key, value in self.config)
        return f"the file says {self.found}: {f'{self.scheduler} with ' if self.scheduler else ''}{listed}"


@dataclass(frozen=True, slots=True)
class BaseConfigs:
    """Configs of the folder that goes with the file."""

    scheduler: Config
    codec: Config
    denoiser: Config

    @property
    def scheduler_class(self) -> str:
        """Return the name of the scheduler's class."""
        return str(self.scheduler.get("_class_name", ""))

    @property
    def is_flow(self) -> bool:
        """Return whether the scheduler follows a flow from noise to the image, which has a single kind of
        prediction."""
        by_setting = self.scheduler.get("use_flow_sigmas") or self.scheduler.get("prediction_type") == "flow_prediction"
        return bool(by_setting) or self.scheduler_class.startswith("FlowMatch")


def read_file_sampling(file: Path, header: Header, base: BaseConfigs, keys_of: SchedulerKeys) -> FileSampling:
    """Read the sampling that a .safetensors or .gguf file names, for the folder that goes with it. Raises
    BrokenFile."""
    marks = {tensor.name.rpartition("model.diffusion_model.")[2]: tensor for tensor in header.tensors}
    marks = {name: tensor for name, tensor in marks.items() if is_metadata_tensor(tensor)}
    problems = list(_problems(file, marks, base))
    wanted: dict[str, Scalar] = {}
    found: list[str] = []
    if is_cosxl := any(name.startswith("edm_vpred.") for name in marks):
        wanted |= COSXL | {key: _number(file, marks, f"edm_vpred.{key}", value) for key, value in COSXL_SIGMAS.items()}
        found.append("edm_vpred.sigma_max")
    prediction, source = _prediction(header, marks)
    notes: list[str] = []
    if prediction is not None and not is_cosxl and "edm_mean" not in marks:
        if (why := _why_unsupported(prediction, source, base)) is not None:
            (notes if base.is_flow and prediction != "sample" and source != "v_pred" else problems).append(why)
        elif not base.is_flow:
            wanted["prediction_type"] = prediction
            found.append(source)
    if source_of_zero := _zero_snr(header, marks):
        wanted["rescale_betas_zero_snr"] = True
        found.append(source_of_zero)
        if base.is_flow:
            problems.append(f"{source_of_zero}: {base.scheduler_class} has no zero terminal SNR")
    elif prediction == "epsilon" and not base.is_flow:
        wanted["rescale_betas_zero_snr"] = False  # of noise alone, epsilon says nothing of the image
    sampling = _missing_from_config(wanted, found, base, keys_of, edm=is_cosxl)
    return replace(sampling, area_px=_area_px(header), notes=tuple(notes), problems=tuple(problems))


def _missing_from_config(
    wanted: dict[str, Scalar], found: list[str], base: BaseConfigs, keys_of: SchedulerKeys, *, edm: bool
) -> FileSampling:
    """Return the values that the folder's config does not have already. Zero terminal SNR begins at the last timestep
    of training, which only `trailing` spacing draws (Lin et al., arXiv 2305.08891)."""
    own = base.scheduler_class
    if edm and own != EDM:
        return FileSampling(EDM, tuple(sorted(wanted.items())), " and ".join(found))
    changed = {key: value for key, value in wanted.items() if base.scheduler.get(key, DEFAULTS.get(key)) != value}
    if changed.get("rescale_betas_zero_snr") is True:
        changed["timestep_spacing"] = "trailing"
    able = own if all(key in keys_of(own) for key in changed) else ABLE
    config = tuple(sorted(changed.items()))
    return FileSampling(able if able != own else None, config, " and ".join(found) if config else "")


def _area_px(header: Header) -> int | None:
    sides = re.fullmatch(r"(\d{2,5})x(\d{2,5})", str(header.metadata.get("modelspec.resolution") or ""))
    return int(sides[1]) * int(sides[2]) if sides is not None else None


def _prediction(header: Header, marks: Container[str]) -> tuple[str | None, str]:
    """Return the denoiser's type of prediction and the mark that says so. A tensor is newer than the header of a merge,
    which is copied."""
    if "v_pred" in marks:
        return "v_prediction", "v_pred"
    metadata = header.metadata
    for key in ("modelspec.prediction_type", "modelspec.predict_key", "prediction_type"):
        if text := str(metadata.get(key) or "").strip().lower().replace("-", "_").replace(" ", "_"):
            return PREDICTIONS.get(text, text), f"{key} = {text}"
    if _is_true(metadata.get("ss_v_parameterization")):
        return "v_prediction", "ss_v_parameterization"
    architecture = str(metadata.get("modelspec.architecture") or "")
    if any(family.predicts_v(architecture) for family in all_families()):
        return "v_prediction", f"modelspec.architecture = {architecture}"
    return None, ""


def _why_unsupported(prediction: str, source: str, base: BaseConfigs) -> str | None:
    """Return the reason why the folder's scheduler can't follow a prediction; None if it can, or if a flow has no
    other."""
    own = base.scheduler_class or "the scheduler"
    if base.is_flow:
        is_plain = prediction == "flow" or (prediction == "v_prediction" and source != "v_pred")
        return None if is_plain else f"{source}: {own} follows a flow, which has no such prediction"
    if prediction in {"v_prediction", "epsilon", "sample"}:
        return None
    return f"{source}: {own} has no such prediction; name a folder whose scheduler has"


def _zero_snr(header: Header, marks: Container[str]) -> str | None:
    """Return the mark by which the noise of training ended without a rest of the image; None if there is no such
    mark."""
    if "ztsnr" in marks:
        return "ztsnr"
    keys = ("ss_zero_terminal_snr", "modelspec.ztsnr", "ztsnr")
    return next((key for key in keys if _is_true(header.metadata.get(key))), None)


def _problems(file: Path, marks: Mapping[str, Tensor], base: BaseConfigs) -> Iterator[str]:
    """Yield the marks that can't be followed with any scheduler, as messages."""
    if {"edm_mean", "edm_std"} & marks.keys() and not _has_edm_latents(file, marks, base):
        yield (
            "edm_mean, edm_std: it was trained with EDM's noise, on latents of this mean and deviation, and the "
            "folder's scheduler and codec (latents_mean, latents_std) were not: name the folder of "
            f"{all_marks()['edm_mean'].example}"
        )
    for name in marks:
        known = re.fullmatch(r"v_pred|ztsnr|edm_(mean|std)|edm_vpred\.sigma_(max|min)|scaled_fp8|.*\.scaled_fp8", name)
        mark = all_marks().get(name)
        if mark is not None and mark.config_key is not None and not base.denoiser.get(mark.config_key):
            yield f"{name}: it needs a folder whose denoiser's config has {mark.config_key}, as {mark.example} has"
        elif not known and mark is None:
            yield f"the tensor {name} says something of the file that is not known here"


def _has_edm_latents(file: Path, marks: Mapping[str, Tensor], base: BaseConfigs) -> bool:
    """Return whether the folder's configs are those of such latents, with the file's numbers if it has some."""
    pairs = (("edm_mean", "latents_mean"), ("edm_std", "latents_std"))
    for mark, key in pairs:
        configured = base.codec.get(key)
        numbers = read_numbers(file, marks[mark]) if mark in marks else ()
        if not isinstance(configured, list) or (numbers and not _are_near(numbers, configured)):
            return False
    return base.scheduler_class.startswith("EDM")


def _are_near(numbers: tuple[float, ...], others: list[Any]) -> bool:
    if len(others) != len(numbers) or not all(isinstance(each, int | float) for each in others):
        return False
    return all(abs(a - b) <= 0.02 * max(1.0, abs(b)) for a, b in zip(numbers, others, strict=True))


def _number(file: Path, marks: Mapping[str, Tensor], name: str, default: float) -> float:
    numbers = read_numbers(file, marks[name]) if name in marks else ()
    return float(f"{numbers[0]:.6g}") if numbers else default  # as it is meant: 0.002, not what a float32 is


def _is_true(value: Any) -> bool:
    return str(value).lower() in {"true", "1"}
