"""The pydantic models of the catalog's files, one class a table, and the checks that span several keys."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from pipelines.catalog.sizes import Tier
from pipelines.catalog.toml import Strict
from pipelines.protocol.images import Conditioning, Dtype, Offload, Quantize


class QualityTier(Strict):
    """One quality."""

    steps: Annotated[int, Field(ge=1, le=200)]


class QualityTable(Strict):
    """quality -> steps."""

    default: Literal["low", "medium", "high"]
    low: QualityTier
    medium: QualityTier
    high: QualityTier


class SamplingTable(Strict):
    """[sampling]: `pipelines.protocol.images.SamplingDefaults`."""

    guidance: Annotated[float, Field(ge=0, le=50)] = 4.0
    strength: Annotated[float, Field(gt=0, le=1)] = 0.6
    negative_prompt: str = ""
    scheduler: str | None = None
    shift: Annotated[float, Field(gt=0)] | None = None
    refine_strength: Annotated[float, Field(gt=0, lt=1)] = 0.3


class LoraTable(Strict):
    """An adapter that every job uses."""

    path: Annotated[str, Field(pattern=r"\.safetensors$")]
    weight: float = 1.0


class CacheTable(Strict):
    """Step caching. Options that the method does not have are rejected when the checkpoint is loaded."""

    method: Literal["first-block", "taylorseer", "magcache"]
    threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    interval: Annotated[int, Field(ge=2, le=20)] | None = None
    mag_ratios: list[float] = Field(default_factory=list)


class RuntimeTable(Strict):
    """[runtime]: `pipelines.protocol.images.Runtime`."""

    dtype: Dtype = "auto"
    vae_tiling: bool = False
    compile: bool = False
    offload: Offload = "none"
    quantize: Quantize = "none"
    cache: CacheTable | None = None
    loras: list[LoraTable] = Field(default_factory=list)
    lora_folder: str | None = None
    max_batch: Annotated[int, Field(ge=1, le=64)] | None = None
    resident: bool = False


class ModelTable(Strict):
    """One served name."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
    tier: Tier
    price: Annotated[str, Field(pattern=r"^[0-9]{1,8}(\.[0-9]{1,4})?$")]
    ratios: Annotated[list[str], Field(min_length=1)] | None = None


class CheckpointFile(Strict):
    """One checkpoint and its models."""

    checkpoint: Annotated[str, Field(min_length=1)]
    config: str | None = None
    family: str
    conditioning: Conditioning
    max_references: Annotated[int, Field(ge=1, le=16)] | None = None
    native_area_px: Annotated[int, Field(ge=4096)] = 1024 * 1024
    max_area_px: Annotated[int, Field(ge=4096)] = 1_850_000
    steps: Annotated[int, Field(ge=1, le=200)] | None = None
    quality: QualityTable | None = None
    sampling: SamplingTable = SamplingTable()
    runtime: RuntimeTable = RuntimeTable()
    models: Annotated[list[ModelTable], Field(min_length=1)]


class CatalogFile(Strict):
    """catalog.toml: what all checkpoints share."""

    default: str
    groups: dict[str, str]
    aliases: dict[str, str] = Field(default_factory=dict)


class Presets(Strict):
    """presets.toml: by tier, aspect ratio -> width and height."""

    model_config = ConfigDict(extra="forbid", strict=False)
    one: Annotated[dict[str, tuple[int, int]], Field(alias="1K")]
    two: Annotated[dict[str, tuple[int, int]], Field(alias="2K")]
    four: Annotated[dict[str, tuple[int, int]], Field(alias="4K")]


def validate_file(file: CheckpointFile, shared: CatalogFile) -> Iterator[tuple[str, str]]:
    """Keys and their errors."""
    if file.family not in shared.groups:
        yield "family", f"got {file.family!r}, expected one of {', '.join(shared.groups)} (catalog.toml, [groups])"
    if file.quality is None and file.steps is None:
        yield "steps", "missing; a checkpoint without a [quality] table says how many steps it takes"
    if file.quality is not None and file.steps is not None:
        yield "steps", "the [quality] table already says how many; keep one of the two"
    if file.checkpoint.endswith(".safetensors") and file.config is None:
        yield "config", "missing; a single .safetensors file needs the folder of its configs"
    if file.max_area_px < file.native_area_px:
        yield "max_area_px", f"got {file.max_area_px}, expected at least native_area_px ({file.native_area_px})"
