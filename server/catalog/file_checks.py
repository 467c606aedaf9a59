"""The checks of a checkpoint's catalog file that span several keys."""

from collections import Counter
from collections.abc import Iterator

from server.catalog.schema import (
    LOCAL_KEYS,
    CatalogFile,
    CheckpointFile,
    CheckpointTable,
    IPAdapterTable,
    T2IAdapterTable,
    UpstreamTable,
)

OF_DRAWING = {*LOCAL_KEYS, "quality", "references"} - {"checkpoint", "runtime", "enlarge"}  # not of an upscaler
OF_NETWORKS = {"dtype", "resident", "batch", "max_batch"}  # of [runtime], also of an upscaler


def validate_file(file: CheckpointFile, shared: CatalogFile) -> Iterator[tuple[str, str]]:
    """Yield keys and their errors."""
    if file.family not in shared.groups:
        yield "family", f"got {file.family!r}, expected one of {', '.join(shared.groups)} (catalog.toml, [groups])"
    yield from _validate_table(file)
    if file.references is not None:
        yield from ((f"references.{key}", message) for key, message in _validate_table(file.references))
    if file.quality is None and file.steps is None:
        yield "steps", "missing; a checkpoint without a [quality] table says how many steps it takes"
    if file.quality is not None:
        for name in ("standard", "hd"):
            if getattr(file.quality, getattr(file.quality, name)) is None:
                yield f"quality.{name}", f"got {getattr(file.quality, name)!r}, which this table does not have"
    if file.quality is not None and file.steps is not None:
        yield "steps", "the [quality] table already says how many; keep one of the two"


def _validate_table(file: CheckpointTable) -> Iterator[tuple[str, str]]:
    """Yield the keys that are wrong or missing in a checkpoint's table, with messages."""
    if file.upstream is not None:
        yield from _validate_upstream(file, file.upstream)
        return
    if file.checkpoint is None:
        yield "checkpoint", "missing; or an [upstream] table, for a model of another server"
        return
    if file.conditioning is None:
        yield "conditioning", "missing"
    if file.conditioning == "upscale":
        yield from _validate_upscaler(file)
        return
    if file.sheet and file.conditioning == "img2img":
        yield "sheet", 'is for conditioning = "native": img2img would redraw the sheet'
    if file.checkpoint.endswith(".gguf") and file.base is None:
        yield "base", "missing; a .gguf file has the denoiser alone: name the diffusers folder with the other parts"
    if file.checkpoint.endswith(".safetensors") and file.config is None and file.base is None:
        yield (
            "config",
            "missing; a single .safetensors file needs the folder of its configs, or, if it has the denoiser alone, "
            "`base`, the diffusers folder with the other parts",
        )
    if file.config is not None and file.base is not None:
        yield "base", "with `base`, there is no `config`: the base has the configs"
    if file.denoiser is not None and file.checkpoint.endswith((".safetensors", ".gguf")):
        yield "denoiser", "the file that `checkpoint` names has the denoiser: keep one of the two"
    yield from _validate_controls(file)
    if file.max_area_px < file.native_area_px:
        yield "max_area_px", f"got {file.max_area_px}, expected at least native_area_px ({file.native_area_px})"


def _validate_upscaler(file: CheckpointTable) -> Iterator[tuple[str, str]]:
    """Yield the keys of a table that an upscaler has no use for, with messages."""
    runtime = set() if file.runtime == "auto" else file.runtime.model_fields_set
    keys = [*file.model_fields_set & OF_DRAWING, *(f"runtime.{key}" for key in runtime - OF_NETWORKS)]
    yield from (
        (key, 'is for checkpoints that draw; conditioning = "upscale" is one that does not') for key in sorted(keys)
    )


def _validate_upstream(file: CheckpointTable, upstream: UpstreamTable) -> Iterator[tuple[str, str]]:
    """Yield the keys that are wrong or missing for a model that another server draws, with messages."""
    for key in LOCAL_KEYS:
        if key in file.model_fields_set:
            yield key, "belongs to a checkpoint; this file has an [upstream] table"
    if file.sampling.scheduler_config:
        yield "sampling.scheduler_config", "belongs to a checkpoint; this file has an [upstream] table"
    if upstream.api == "darkroom":
        if upstream.supports is not None:
            yield "upstream.supports", "leave it out: another Darkroom says itself what its model supports"
        return
    if upstream.supports is None:
        yield "upstream.supports", f"missing; list what the model takes, as api = {upstream.api!r} does not say it"
    if file.conditioning == "img2img":
        yield "conditioning", 'expected "native" or nothing: such a server takes no `strength`'


def _validate_controls(file: CheckpointTable) -> Iterator[tuple[str, str]]:
    tables: list[T2IAdapterTable | IPAdapterTable] = [*file.controlnets, *file.t2i_adapters]
    names = [each.name for each in (*tables, *file.ip_adapters)]
    keys = ("controlnets", "t2i_adapters", "ip_adapters")
    key = next((key for key in keys if getattr(file, key)), "control_map")
    if names and file.control_map is not None:
        yield key, "does not work with `control_map`: the checkpoint follows its own map"
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        yield key, f"{twice[0]!r} is there twice; requests choose by name"
    if not names or file.runtime == "auto":
        return
    if file.runtime.offload not in {"none", "encoders"}:
        yield "runtime.offload", f"only 'encoders' works with [[{key}]], which stay on the device"
    if file.ip_adapters and file.runtime.compile:
        yield "runtime.compile", "does not work with [[ip_adapters]]: each would be compiled anew while calls wait"
