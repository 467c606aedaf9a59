"""The noise schedulers of runs: diffusers' classes, with the checkpoint's config and the changes of [sampling].

Each image has one of its own, since schedulers have state between steps.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args, get_origin

import diffusers
import torch

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.inspection.hints import read_name_hints
from pipelines.checkpoints.weight_file.sampling import DEFAULTS, FileSampling
from pipelines.protocol.images import CheckpointSpec, SamplingDefaults, Scalar

KEY: Final = "sampling.scheduler_config"
EDM: Final = "EDM"  # how the classes begin that scale a denoiser's input and output as Karras et al. do (2206.00364)


def new_scheduler(original: Any, sampling: SamplingDefaults) -> Any:
    """Return a scheduler for one image. `original` is the checkpoint's. Raises CheckpointError, which names the key
    of the catalog file that can't be followed."""
    kind = type(original) if sampling.scheduler is None else _class_named(sampling.scheduler)
    if type(original).__name__.startswith(EDM) and not kind.__name__.startswith(EDM):
        message = "the checkpoint predicts noise as EDM does, so it takes EDMEulerScheduler or another EDM scheduler"
        raise CheckpointError(f"sampling.scheduler: {kind.__name__} would draw something else: {message}")
    overrides = dict(sampling.scheduler_config)
    _check_keys(kind, overrides)
    _check_meaning(kind, {**original.config, **overrides})
    shift = {} if sampling.shift is None else {"shift": sampling.shift}
    try:
        return kind.from_config(original.config, **overrides, **shift)
    except Exception as error:  # of a class's own checks
        if not overrides:
            raise
        raise CheckpointError(f"{KEY}: {kind.__name__} refuses {_show_overrides(overrides)}: {error}") from error


def apply_file_scheduler(pipeline: Any, spec: CheckpointSpec, file_sampling: FileSampling) -> tuple[str, ...]:
    """Give a loaded pipeline the scheduler that its file of weights asks for, in place of its folder's. Returns notes
    for the operator: the changes, or the hints of a name that nothing follows."""
    if file_sampling.config:
        wanted = SamplingDefaults(scheduler=file_sampling.scheduler, scheduler_config=file_sampling.config)
        pipeline.register_modules(scheduler=new_scheduler(pipeline.scheduler, wanted))
        return (file_sampling.note,)
    if spec.path.is_dir():
        return ()
    used = {**pipeline.scheduler.config, **dict(spec.sampling.scheduler_config)}
    if read_name_hints(spec.path.stem).predicts_v and used.get("prediction_type") == "epsilon":
        return (f"its name says v prediction, and it is drawn as epsilon; else set {KEY}.prediction_type",)
    return ()


def try_config(original: Any, sampling: SamplingDefaults) -> None:
    """Take a step with `scheduler_config`, before an image is drawn: classes check values as late as that. Raises
    CheckpointError if the same scheduler steps without it."""
    if not sampling.scheduler_config:
        return
    failed = _failure_of_step(new_scheduler(original, sampling))
    plain = SamplingDefaults(scheduler=sampling.scheduler, shift=sampling.shift)
    if failed is not None and _failure_of_step(new_scheduler(original, plain)) is None:
        name = sampling.scheduler or type(original).__name__
        raise CheckpointError(f"{KEY}: {name} refuses {_show_overrides(dict(sampling.scheduler_config))}: {failed}")


def _class_named(name: str) -> Any:
    kind = getattr(diffusers, name, None)
    if kind is None or not hasattr(kind, "from_config"):
        raise CheckpointError(f"sampling.scheduler: diffusers has no scheduler called {name!r}")
    return kind


def _check_keys(kind: Any, overrides: Mapping[str, Scalar]) -> None:
    """Refuse keys that a class does not have, which the library would drop, and values of another type."""
    accepted = {name: each for name, each in inspect.signature(kind.__init__).parameters.items() if name != "self"}
    for key, value in overrides.items():
        if key not in accepted:
            names = ", ".join(accepted)
            raise CheckpointError(f"{KEY}.{key}: {kind.__name__} takes no such key; it takes {names}")
        if (expected := _expected_values(accepted[key], value)) is not None:
            raise CheckpointError(f"{KEY}.{key}: got {value!r}, but {kind.__name__} takes {expected}")


def _check_meaning(kind: Any, config: Mapping[str, Any]) -> None:
    """Refuse a class that lacks a feature that the checkpoint was trained for: it would draw wrong images without an
    error."""
    accepted = inspect.signature(kind.__init__).parameters
    for key, usual in DEFAULTS.items():
        value = config.get(key, usual)
        if value != usual and (key not in accepted or _expected_values(accepted[key], value) is not None):
            raise CheckpointError(
                f"sampling.scheduler: {kind.__name__} has no {key} = {value!r}, as the checkpoint needs"
            )


def _expected_values(parameter: inspect.Parameter, value: Scalar) -> str | None:
    """Return the values that the parameter takes instead, if its annotation or default tells; None if it takes the
    value, or if nothing tells."""
    if get_origin(parameter.annotation) is Literal:
        choices = get_args(parameter.annotation)
        return None if value in choices else " or ".join(map(repr, choices))
    default = parameter.default
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, int | float):
        return None if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    return None if not isinstance(default, str) or isinstance(value, str) else "text in quotes"


def _failure_of_step(scheduler: Any) -> Exception | None:
    latents = torch.zeros(1, 4, 8, 8)
    try:
        scheduler.set_timesteps(2, **({"mu": 1.0} if scheduler.config.get("use_dynamic_shifting") else {}))
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(latents, scheduler.timesteps[0])
        scheduler.step(latents, scheduler.timesteps[0], latents)
    except Exception as error:  # whatever a class raises for a value
        return error
    return None


def _show_overrides(overrides: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in overrides.items())
