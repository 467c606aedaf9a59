"""`[runtime]` of a catalog file, by the libraries' own features.

Each function raises CheckpointError with the key of an option that the checkpoint or the machine does not support.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

import diffusers
import torch

from pipelines.checkpoints.classes.index import is_text_encoder
from pipelines.checkpoints.errors import CheckpointError, RefusedOption
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.memory.device_bytes import component_bytes, control_bytes
from pipelines.checkpoints.memory.host_bytes import host_bytes
from pipelines.checkpoints.memory.runtime import COPIED_BY_LAYER, FP8_CAPABILITY, check_conflicts, choose_runtime
from pipelines.checkpoints.memory.shares import Room
from pipelines.device.attention import left_to_torch
from pipelines.device.call_wrapping import wrap_calls
from pipelines.device.failures import is_out_of_memory
from pipelines.device.memory import compute_dtype, copy_mapped_weights, free_memory
from pipelines.device.quantizers import quantizing_config
from pipelines.device.staged_copy import move_modules
from pipelines.images.loading.adapter_loading import load_adapter
from pipelines.images.loading.compilation import compile_denoiser, fuse_projections
from pipelines.images.loading.fp8 import quantize_linears, supports_scaled_matmul
from pipelines.images.parallel.choice import choose_parallel
from pipelines.protocol.images import CheckpointSpec, Lora, Runtime, StepCache

HOST: Final = torch.device("cpu")
PAGE_LOCK: Final = "page_lock"  # as an option that a machine can refuse
NOT_LOCKED: Final = (
    "without page-locked copies, which makes them slower: the driver refuses so much page-locked memory, as under WSL"
)
QUANTIZED_HERE: Final = frozenset({"fp8", "float8"})  # of weights that were loaded to the host


def loading_options(runtime: Runtime, denoiser: str) -> dict[str, Any]:
    """Return the arguments of `from_pretrained`. `denoiser` is the component's name: "unet" or "transformer"."""
    if runtime.quantize == "none" or runtime.quantize in QUANTIZED_HERE:
        return {}
    config = quantizing_config(diffusers, runtime.quantize, "runtime.quantize")
    return {"quantization_config": diffusers.PipelineQuantizationConfig(quant_mapping={denoiser: config})}


def resolve(
    spec: CheckpointSpec,
    device: torch.device,
    room: Room,
    devices: int = 1,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Runtime, tuple[str, ...]]:
    """Choose the options to load with, and return notes on the choice too, for a worker with so many devices and this
    room for weights on each. `refused` are the values that `runtime = "auto"` has tried, each with the reason why it
    can't be had.

    Raises CheckpointError for options that defeat each other, or that the worker does not suit.
    """
    check_conflicts(spec.runtime)
    if spec.runtime.gpus > 1:
        runtime = choose_parallel(spec, devices)
        return runtime, (f"on {runtime.gpus} devices, parallel = {runtime.parallel!r}",)
    if spec.runtime.auto or spec.runtime.offload in COPIED_BY_LAYER:
        sizes_of = partial(component_bytes, CheckpointFiles.of(spec), 2)
    if spec.runtime.auto:
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        chosen, why = choose_runtime(sizes_of, room, capability, control_bytes(spec.controls, 2), refused)
        chosen = replace(chosen, page_lock=chosen.page_lock and PAGE_LOCK not in refused)
        return chosen, (f"runtime auto: {why}", *(f"without {name!r}: {reason}" for name, reason in refused.items()))
    if PAGE_LOCK in refused:
        return replace(spec.runtime, page_lock=False), (refused[PAGE_LOCK],)
    if spec.runtime.offload in COPIED_BY_LAYER:
        waiting = host_bytes(sizes_of(spec.runtime.quantize), spec.runtime)
        if waiting > room.host_bytes:
            return replace(spec.runtime, page_lock=False), (
                f"without page-locked copies, which makes them slower: they would take {waiting / 2**30:.1f} GiB of "
                f"the host, which has {room.host_bytes / 2**30:.1f} GiB for weights",
            )
    return spec.runtime, ()


def apply(pipeline: Any, denoiser: Any, runtime: Runtime, device: torch.device) -> tuple[str, ...]:
    """Set the options of a loaded pipeline. It is on the device, or on the host if it is offloaded; a denoiser that is
    quantized here is on the host, and joins it. Weights that stay on the host leave their files for its memory.

    Returns notes for the operator.
    """
    notes: list[str] = []
    _activate_adapters(pipeline, catalog_adapters(runtime))
    if hasattr(getattr(pipeline, "vae", None), "enable_slicing"):
        pipeline.vae.enable_slicing()  # a batch is decoded image by image: eight at once take eight times as much
    if runtime.vae_tiling:
        if not hasattr(pipeline.vae, "enable_tiling"):
            raise CheckpointError(f"runtime.vae_tiling: {type(pipeline.vae).__name__} has no tiling")
        pipeline.vae.enable_tiling()
    if runtime.quantize == "float8":
        _store_in_float8(denoiser)
    if runtime.attention is not None:
        _set_attention(denoiser, runtime.attention, compute_dtype(runtime.dtype, device), device)
    if runtime.quantize == "fp8" or (runtime.compile and not runtime.loras and runtime.quantize == "none"):
        fuse_projections(denoiser)
    if runtime.quantize == "fp8":
        notes.append(_quantize_fp8(denoiser, device))
    if runtime.quantize in QUANTIZED_HERE:
        move_modules([denoiser], device if runtime.offload in {"none", "encoders"} else HOST)
        free_memory(device)  # what the layers' own weights took, in the allocator's pool for copies
    if runtime.cache is not None:
        _cache(denoiser, runtime.cache)
    if runtime.compile:
        compile_denoiser(denoiser)
    if runtime.offload != "none":
        _offload(pipeline, runtime, device)
    leaves_host = runtime.gpus > 1 and runtime.parallel == "tensor" and device.type != "cpu"
    copy_mapped_weights(part for part in pipeline.components.values() if part is not denoiser or not leaves_host)
    return tuple(notes)


def _store_in_float8(denoiser: Any) -> None:
    """Keep the layers' weights in float8, and let each cast them when it computes. peft makes adapters in a layer's
    `compute_dtype`, and without one in the format of its weights, in which nothing is computed."""
    dtype = denoiser.dtype
    denoiser.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype)
    for layer in denoiser.modules():
        if getattr(getattr(layer, "weight", None), "dtype", None) == torch.float8_e4m3fn:
            layer.compute_dtype = dtype


def _activate_adapters(pipeline: Any, adapters: dict[str, Lora]) -> None:
    for name, lora in adapters.items():
        try:
            load_adapter(pipeline, lora.path, name)
        except CheckpointError as error:
            raise CheckpointError(f"runtime.loras: {lora.path}: {error}") from error
    if adapters:
        pipeline.set_adapters(list(adapters), [lora.weight for lora in adapters.values()])


def catalog_adapters(runtime: Runtime) -> dict[str, Lora]:
    """Return the catalog's adapters, by their names in diffusers."""
    return {f"catalog-{number}": lora for number, lora in enumerate(runtime.loras)}


def requested_adapters(runtime: Runtime, loras: Iterable[tuple[str, float]]) -> dict[str, Lora]:
    """Return a request's adapters in the checkpoint's `lora_folder`, by their names in diffusers, which may have no
    dot: one for each file name."""
    if runtime.lora_folder is None:
        return {}
    folder = runtime.lora_folder
    return {
        f"requested-{quote(name, safe='').replace('.', '%2E')}": Lora(folder / f"{name}.safetensors", weight)
        for name, weight in loras
    }


def _cache(denoiser: Any, cache: StepCache) -> None:
    from diffusers.hooks import FirstBlockCacheConfig, MagCacheConfig, TaylorSeerCacheConfig

    if not hasattr(denoiser, "enable_cache"):
        raise CheckpointError(f"runtime.cache: {type(denoiser).__name__} has no step caching")
    accepted = {"first-block": {"threshold"}, "taylorseer": {"interval"}, "magcache": {"threshold", "mag_ratios"}}
    options = {name for name in ("threshold", "interval", "mag_ratios") if getattr(cache, name)}
    if unknown := options - accepted[cache.method]:
        raise CheckpointError(f"runtime.cache.{min(unknown)}: {cache.method} does not take it")
    threshold = {} if cache.threshold is None else {"threshold": cache.threshold}
    match cache.method:
        case "first-block":
            config: Any = FirstBlockCacheConfig(**threshold)
        case "taylorseer":
            config = TaylorSeerCacheConfig(cache_interval=cache.interval or 5)
        case "magcache":
            if not cache.mag_ratios:
                raise CheckpointError("runtime.cache.mag_ratios: magcache needs the ratios calibrated for a checkpoint")
            ratios = list(cache.mag_ratios)
            config = MagCacheConfig(mag_ratios=ratios, num_inference_steps=len(ratios), **threshold)
    try:
        denoiser.enable_cache(config)
    except Exception as error:  # a transformer whose blocks diffusers' hooks do not know
        raise CheckpointError(f"runtime.cache: {type(denoiser).__name__} has no {cache.method}: {error}") from error


def _set_attention(denoiser: Any, name: str, dtype: torch.dtype, device: torch.device) -> None:
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    if name.endswith("_hub"):
        raise CheckpointError(f"runtime.attention: {name!r} would be downloaded, and nothing here is")
    if dtype == torch.float32 and _is_of_half_precision(name, device):
        raise CheckpointError(
            f"runtime.attention: {name!r} takes bfloat16 and float16, and the denoiser computes in float32; set "
            "runtime.dtype, or use 'native'"
        )
    active, _ = _AttentionBackendRegistry.get_active_backend()
    try:
        denoiser.set_attention_backend(name)
    except Exception as error:  # an unknown name, or a library that is not installed
        raise CheckpointError(f"runtime.attention: {error}") from error
    finally:
        _AttentionBackendRegistry.set_active_backend(active)  # the library sets it for all checkpoints
    processors = (getattr(module, "processor", None) for module in denoiser.modules())
    if not any(getattr(each, "_attention_backend", None) == AttentionBackendName(name) for each in processors):
        raise CheckpointError(f"runtime.attention: the attention of {type(denoiser).__name__} takes no backend")
    wrap_calls(denoiser, left_to_torch())


def _is_of_half_precision(name: str, device: torch.device) -> bool:
    """Return whether an attention backend takes half precision alone, by the library's check of its inputs, which is
    left out while images are drawn. Sage's kernels for single architectures check by themselves. Torch's flash
    attention for CPUs takes float32."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry, _check_qkv_dtype_bf16_or_fp16

    if name == "_native_flash" and device.type == "cpu":
        return False
    return _check_qkv_dtype_bf16_or_fp16 in _AttentionBackendRegistry._constraints.get(name, ()) or "sage" in name


def _quantize_fp8(denoiser: Any, device: torch.device) -> str:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        message = "runtime.quantize: 'fp8' needs a GPU of compute capability 8.9 or more (Ada, Hopper)"
        raise RefusedOption("fp8", message)
    if not supports_scaled_matmul(device):
        raise RefusedOption(
            "fp8",
            f"runtime.quantize: 'fp8' needs another torch: {torch.__version__} does not multiply float8 matrices "
            f"by rows on this {'GPU' if device.type == 'cuda' else 'CPU'}",
        )
    try:
        return str(quantize_linears(denoiser, device))
    except ValueError as error:
        raise RefusedOption("fp8", f"runtime.quantize: {type(denoiser).__name__}: {error}") from error


def _offload(pipeline: Any, runtime: Runtime, device: torch.device) -> None:
    if device.type == "cpu":
        raise CheckpointError(f"runtime.offload: {runtime.offload!r} is for a GPU; the device here is the CPU")
    if runtime.offload == "model":
        pipeline.enable_model_cpu_offload(device=device)
        return
    if not runtime.page_lock:
        copy_mapped_weights(pipeline.components.values())  # what follows keeps the tensors that it finds
    stay = _kept_on_device(pipeline.components) if runtime.offload == "encoders" else {}
    move_modules([part for part in stay.values() if getattr(part, "hf_quantizer", None) is None], device)
    try:
        # without record_stream the host would wait for the device after every layer
        pipeline.enable_group_offload(
            onload_device=device,
            offload_type="leaf_level",
            use_stream=True,
            record_stream=True,
            low_cpu_mem_usage=not runtime.page_lock,
            exclude_modules=list(stay),
        )
    except (MemoryError, RuntimeError) as error:
        if not runtime.page_lock or not is_out_of_memory(error):
            raise
        raise RefusedOption(PAGE_LOCK, NOT_LOCKED) from error
    except ValueError as error:
        raise RefusedOption(runtime.offload, f"runtime.offload: {type(pipeline).__name__}: {error}") from error


def _kept_on_device(components: Mapping[str, Any]) -> dict[str, torch.nn.Module]:
    """Return the components that stay on the device where text encoders do not."""
    modules = {name: part for name, part in components.items() if isinstance(part, torch.nn.Module)}
    return {name: part for name, part in modules.items() if not is_text_encoder(name)}
