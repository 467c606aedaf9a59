"""Chooses how a checkpoint is divided over the devices of its worker, and refuses those that can't be. Nothing is
loaded for it."""

from dataclasses import replace
from typing import Any

import diffusers

from pipelines.checkpoints.classes.index import component_names, denoiser_name, is_text_encoder
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.memory.runtime import check_conflicts
from pipelines.protocol.images import CheckpointSpec, Parallel, Runtime

PLANS: dict[Parallel, str] = {"context": "_cp_plan", "tensor": "_tp_plan"}  # of classes in diffusers


def choose_parallel(spec: CheckpointSpec, devices: int) -> Runtime:
    """Return the spec's options with a `parallel` that is not "auto", for a worker with so many devices.

    Raises CheckpointError.
    """
    runtime = spec.runtime
    if runtime.gpus == 1:
        return runtime
    folder = CheckpointFiles.of(spec).checked_folder
    index = folder.index
    part = denoiser_name(index)
    kind = getattr(diffusers, index[part][1], None)
    if runtime.parallel == "auto":
        runtime = replace(runtime, parallel=_automatic(kind, index, runtime.gpus))
    check_conflicts(runtime)
    if runtime.parallel == "encoders":
        _check_encoders(spec, index, devices)
        return runtime
    if getattr(kind, PLANS[runtime.parallel], None) is None:
        raise CheckpointError(
            f"runtime.parallel: diffusers has no plan for {runtime.parallel} parallelism of {index[part][1]}"
        )
    if devices != runtime.gpus:
        raise CheckpointError(_wrong_worker(runtime.gpus, devices))
    if spec.controls and spec.own_map is None:
        raise CheckpointError(
            f"runtime.gpus: ControlNets and IP-Adapters do not work with parallel = {runtime.parallel!r}"
        )
    heads = folder.config(part).get("num_attention_heads")
    if isinstance(heads, int) and heads % runtime.gpus:
        raise CheckpointError(f"runtime.gpus: {runtime.gpus} does not divide the {heads} attention heads")
    return runtime


def check_attention(denoiser: Any) -> None:
    """Raise CheckpointError for a backend that can't exchange tokens between devices."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

    for module in denoiser.modules():
        backend = getattr(getattr(module, "processor", None), "_attention_backend", None)
        if backend is not None and not Registry._is_context_parallel_available(backend):
            known = ", ".join(sorted(Registry._supports_context_parallel))
            raise CheckpointError(f"runtime.attention: {backend.value!r} is for one GPU; expected one of {known}")


def _automatic(kind: Any, index: dict[str, Any], gpus: int) -> Parallel:
    if getattr(kind, PLANS["context"], None) is not None:
        return "context"
    if gpus == 2 and any(map(is_text_encoder, component_names(index))):
        return "encoders"
    name = getattr(kind, "__name__", "the denoiser")
    raise CheckpointError(
        f"runtime.gpus: diffusers has no plan for {name} on several GPUs; with gpus = 2 its text encoders could be on "
        "the second one"
    )


def _check_encoders(spec: CheckpointSpec, index: dict[str, Any], devices: int) -> None:
    if spec.runtime.gpus != 2:
        raise CheckpointError('runtime.gpus: parallel = "encoders" is for two GPUs')
    if devices < 2:
        raise CheckpointError(_wrong_worker(2, devices))
    if not any(map(is_text_encoder, component_names(index))):
        raise CheckpointError(f"runtime.parallel: {index['_class_name']} has no text encoders")


def _wrong_worker(gpus: int, devices: int) -> str:
    return (
        f"runtime.gpus: it takes {gpus} GPUs, and its image worker has {devices}; DARKROOM_ENGINES gives a worker "
        "several (docs/guides/gpus.md)"
    )
