"""The pydantic models of the catalog's files, one class a table."""

import math
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from pipelines.protocol.images import (
    Batch,
    Conditioning,
    Dtype,
    Enlarge,
    LongPrompt,
    Offload,
    Parallel,
    Quantize,
    Scalar,
)
from pipelines.protocol.upstream import ImageApi
from server.catalog.sizes import Tier
from server.catalog.toml import ServerUrl, Strict

ControlName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="a name of letters, digits, '.', '_' and '-'",
    ),
]


class T2IAdapterTable(Strict):
    """[[t2i_adapters]]: `pipelines.protocol.images.Control`."""

    name: ControlName
    """What requests send."""
    checkpoint: Annotated[str, Field(min_length=1)]
    """A diffusers folder."""
    map: Annotated[str, Field(min_length=1, max_length=100)]
    """The kind of map that it follows, for people: `canny`, `sketch`."""
    strength: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Strength of a request that does not say its own."""


class ControlNetTable(T2IAdapterTable):
    """[[controlnets]]: the same, and which of its kinds."""

    mode: Annotated[int, Field(ge=0)] | None = None
    """For a ControlNet of several kinds: the number of this one."""


class IPAdapterTable(Strict):
    """[[ip_adapters]]: `pipelines.protocol.images.Control`."""

    name: ControlName
    """What requests send."""
    checkpoint: Annotated[str, Field(pattern=r"\.safetensors$", description="a .safetensors file")]
    """A file."""
    image_encoder: Annotated[str, Field(min_length=1)]
    """The transformers folder of the encoder that it was trained with."""
    strength: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Strength of a request that does not say its own."""


QualityName = Literal["low", "medium", "high", "xhigh", "max"]
AreaPx = Annotated[int, Field(ge=4096, description="an area in pixels, such as 1048576 for 1024 x 1024")]
QUALITIES: tuple[QualityName, ...] = get_args(QualityName)
PartPath = Annotated[str, Field(min_length=1)]
PART_KEYS = ("vae", "text_encoder", "text_encoder_2", "text_encoder_3", "denoiser")
LOCAL_KEYS = (
    *PART_KEYS,
    "checkpoint", "config", "base", "sheet", "enlarge", "schedulers", "runtime", "controlnets", "t2i_adapters",
    "ip_adapters", "control_map",
)  # fmt: skip


def _scheduler_value(value: Any) -> Scalar:
    """Return the value. Raises PydanticCustomError for a list, a table, inf and nan."""
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise PydanticCustomError("scheduler_value", "text in quotes, a number, true or false")


SchedulerValue = Annotated[Scalar, PlainValidator(_scheduler_value)]


class QualitySteps(Strict):
    """The steps of one quality."""

    steps: Annotated[int, Field(ge=1, le=200)]


class QualityTable(Strict):
    """quality -> steps. `standard` and `hd` are older names for one of the others. Without `xhigh` or `max`, a call for
    it gets the best quality that there is."""

    default: Literal["low", "medium", "high"]
    """What a request without `quality` gets."""
    low: QualitySteps
    """`{ steps = N }`, 1 to 200."""
    medium: QualitySteps
    """As `low`."""
    high: QualitySteps
    """As `low`."""
    xhigh: QualitySteps | None = None
    """As `low`. Without it such a request gets the best quality of the table."""
    max: QualitySteps | None = None
    """As `xhigh`."""
    standard: QualityName = "medium"
    """Which of the others dall-e's `standard` means."""
    hd: QualityName = "high"
    """Which of the others dall-e's `hd` means."""


class SamplingTable(Strict):
    """[sampling]: `pipelines.protocol.images.SamplingDefaults`."""

    guidance: Annotated[float, Field(ge=0, le=50)] = 4.0
    """Guidance scale."""
    strength: Annotated[float, Field(gt=0, le=1)] = 0.6
    """How far `img2img` redraws a reference."""
    negative_prompt: str = ""
    """What to avoid."""
    scheduler: str | None = None
    """A diffusers class, in place of the checkpoint's own."""
    shift: Annotated[float, Field(gt=0)] | None = None
    """The shift of a flow-matching scheduler."""
    refine_strength: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """How far the second pass redraws a 2K or 4K image."""
    scheduler_config: dict[str, SchedulerValue] = Field(default_factory=dict)
    """Values over those of the checkpoint's `scheduler_config.json`. The load refuses unknown ones."""
    long_prompt: LongPrompt = "tell"
    """What becomes of a prompt that the text encoders cannot read whole."""


class LoraTable(Strict):
    """An adapter that every job uses."""

    path: Annotated[str, Field(pattern=r"\.safetensors$", description="a .safetensors file")]
    """The file, in the weights folder."""
    weight: float = 1.0
    """How strongly it is added."""


class CacheTable(Strict):
    """Step caching. Options that the method does not have are rejected when the checkpoint is loaded."""

    method: Literal["first-block", "taylorseer", "magcache"]
    """How steps are skipped."""
    threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For `first-block` and `magcache`: the change that is small enough to skip a step."""
    interval: Annotated[int, Field(ge=2, le=20)] | None = None
    """For `taylorseer`: one step in so many is computed."""
    mag_ratios: list[float] = Field(default_factory=list)
    """For `magcache`: the ratios of the checkpoint."""


class RuntimeTable(Strict):
    """[runtime]: `pipelines.protocol.images.Runtime`."""

    dtype: Dtype = "auto"
    """Number format of weights. `auto`: bfloat16 on a GPU (float16 before Ampere), float32 on a CPU."""
    vae_tiling: bool = False
    """Decode and encode in tiles: slower, with less memory."""
    compile: bool = False
    """Compile the denoiser's blocks with torch.compile. Loading takes minutes and needs a compiler."""
    offload: Offload = "none"
    """Which weights wait on the host: `encoders` moves blocks of text encoders to the device for a new prompt, `group`
    those of all components, and `model` whole components."""
    quantize: Quantize = "none"
    """Number format of the denoiser's weights."""
    cache: CacheTable | None = None
    """Step caching."""
    loras: list[LoraTable] = Field(default_factory=list)
    """Adapters that every image uses."""
    lora_folder: PartPath | None = None
    """A folder of adapters, in the weights folder, that requests may name in `loras`."""
    embedding_folder: PartPath | None = None
    """A folder of textual-inversion embeddings, in the weights folder: `<name>` in a prompt is the file `name`."""
    batch: Batch = "merged"
    """`merged` lets images share forward passes; `exact` draws each bit for bit as if it were alone."""
    max_batch: Annotated[int, Field(ge=1, le=64)] | None = None
    """Most images in a forward pass; if unset, what was measured to be fastest."""
    resident: bool = False
    """Never unload it to make room for another checkpoint."""
    attention: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")] | None = None
    """How the denoiser's attention is computed, by diffusers' names: `_native_cudnn`, `flash`, `sage`, ... Without it,
    a GPU uses the kernel that is fastest on it."""
    gpus: Annotated[int, Field(ge=1, le=16)] = 1
    """How many GPUs of its image worker draw an image."""
    parallel: Parallel = "auto"
    """How these GPUs share an image."""


def _runtime(value: Any) -> "RuntimeTable | Literal['auto']":
    """Parse a table or one word. Errors name the table's keys alone."""
    if value == "auto" or isinstance(value, RuntimeTable):
        return cast(RuntimeTable | Literal["auto"], value)
    if not isinstance(value, dict):
        raise PydanticCustomError("runtime", "'auto', or a table [runtime]")
    return RuntimeTable.model_validate(value)


class UpstreamTable(Strict):
    """[upstream]: `pipelines.protocol.upstream.ImageUpstream`."""

    url: ServerUrl
    """The address of the other server, which ends in `/v1`."""
    model: Annotated[str, Field(min_length=1)]
    """The model's name there."""
    api: ImageApi
    """Which fields the server takes."""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """The environment variable with its key; no key is sent if unset."""
    supports: list[Literal["text", "image", "negative_prompt", "guidance", "steps", "transparent"]] | None = None
    """List of `text`, `image`, `negative_prompt`, `guidance`, `steps`, `transparent`. A Darkroom says it itself."""
    guidance_field: Literal["guidance_scale", "true_cfg_scale"] = "guidance_scale"
    """The name of guidance there; `true_cfg_scale` for models of vLLM-Omni that read that."""


class ModelTable(Strict):
    """One served name."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", description="a name of letters, digits, '.', '_', '-' and '/'"),
    ]
    """The name that callers send."""
    tier: Tier
    """Resolution of its images."""
    price: Annotated[str, Field(pattern=r"^[0-9]{1,8}(\.[0-9]{1,4})?$", description='CNY a call, in quotes: "0.10"')]
    """CNY a call, in quotes: `"0.10"`."""
    ratios: Annotated[list[str], Field(min_length=1)] | None = None
    """Aspect ratios of `presets.toml`; if unset, all but 4:1, 1:4, 8:1 and 1:8."""


class CheckpointTable(Strict):
    """A checkpoint, or another server's model, and how it draws."""

    checkpoint: Annotated[str, Field(min_length=1)] | None = None
    """A folder, a download cache or a file, in the weights folder."""
    upstream: UpstreamTable | None = None
    """Another server that draws, instead of a checkpoint."""
    config: PartPath | None = None
    """For one file with the whole checkpoint: the diffusers folder with its configs."""
    base: PartPath | None = None
    """For one file with the denoiser alone: the diffusers folder with the other parts."""
    vae: PartPath | None = None
    """A folder of an autoencoder or its `.safetensors` file, in place of the checkpoint's own."""
    text_encoder: PartPath | None = None
    """A text encoder in place of the checkpoint's first one: a transformers folder or a `.safetensors` file."""
    text_encoder_2: PartPath | None = None
    """The same for its second one."""
    text_encoder_3: PartPath | None = None
    """The same for its third one."""
    denoiser: PartPath | None = None
    """The folder of a transformer or U-Net of another training, in place of the checkpoint's own."""
    conditioning: Conditioning | None = None
    """How references enter: `img2img` redraws the first one, `native` reads all. A checkpoint needs it. `upscale` is
    for the file of an upscaler, which enlarges images and draws none."""
    max_references: Annotated[int, Field(ge=1, le=16)] | None = None
    """Most references of a request; if unset, 1 for `img2img` and 16 for `native`."""
    sheet: bool = False
    """Show references beyond what the pipeline takes on one sheet, instead of refusing them."""
    enlarge: Enlarge = "redraw"
    """Above `max_area_px`: `redraw` in tiles, or `resize` only."""
    schedulers: list[Annotated[str, Field(pattern=r"^[A-Z]\w+Scheduler$")]] = Field(
        default_factory=list, description="a diffusers class, such as 'EulerDiscreteScheduler'"
    )
    """Diffusers classes that a request may choose; the warmup tries each."""
    native_area_px: AreaPx = 1024 * 1024
    """The area that it was trained on. 262144 is 512 x 512 px. Of an upscaler, that of a tile of the image that is
    sent; 65536 if unset."""
    max_area_px: AreaPx = 1_850_000
    """The largest area that it draws well in one pass."""
    steps: Annotated[int, Field(ge=1, le=200)] | None = None
    """Denoising steps, if there is no `[quality]`."""
    sampling: SamplingTable = SamplingTable()
    """Values for requests that do not send their own."""
    runtime: Annotated[RuntimeTable | Literal["auto"], PlainValidator(_runtime)] = RuntimeTable()
    """How it is loaded, or `"auto"` to choose by memory."""
    controlnets: list[ControlNetTable] = Field(default_factory=list)
    """ControlNets that requests may name."""
    t2i_adapters: list[T2IAdapterTable] = Field(default_factory=list)
    """T2I-Adapters that requests may name."""
    ip_adapters: list[IPAdapterTable] = Field(default_factory=list)
    """IP-Adapters that requests may name."""
    control_map: ControlName | None = None
    """For a checkpoint that draws from a map with every call, such as FLUX.1 Canny: the name under which requests send
    it in `controls`."""


class ReferencesTable(CheckpointTable):
    """[references]: the checkpoint that draws calls with so many references."""

    first: Annotated[int, Field(ge=1, le=16, alias="from")] = 1
    """From how many references on this checkpoint draws."""
    conditioning: Conditioning | None = "native"
    """As above."""
    steps: Annotated[int, Field(ge=1, le=200)]
    """Denoising steps."""


class CheckpointFile(CheckpointTable):
    """One checkpoint and its models."""

    family: str
    """One of `[groups]` in `catalog.toml`, which says what group a key needs."""
    quality: QualityTable | None = None
    """Steps by quality."""
    references: ReferencesTable | None = None
    """Another checkpoint for calls with references."""
    enhance: bool = False
    """A chat model, the `default` of `chat.toml`, rewrites prompts unless a request has `enhance: false`."""
    models: Annotated[list[ModelTable], Field(min_length=1)]
    """The names of the checkpoint."""


class AliasTable(Strict):
    """Another name of a model."""

    model: str
    """The name that it stands for."""
    response_format: Literal["b64_json"] | None = None
    """The form of its answers, unless a request asks for another one."""
    tiers: bool = False
    """Whether a pixel size that its model is too small or too large for is drawn by the model of that tier in the same
    file, at that model's price."""


def _as_alias(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


class CatalogFile(Strict):
    """catalog.toml: what all checkpoints share."""

    default: str
    """The model of a request that names none."""
    groups: dict[str, str]
    """The group that a key needs, by family."""
    aliases: dict[str, Annotated[AliasTable, BeforeValidator(_as_alias)]] = Field(default_factory=dict)
    """More names of models. `*` in one stands for any letters; the longest name that matches wins."""


class Presets(Strict):
    """presets.toml: by tier, aspect ratio -> width and height."""

    model_config = ConfigDict(extra="forbid", strict=False)
    tier_1k: Annotated[dict[str, tuple[int, int]], Field(alias="1K")]
    tier_2k: Annotated[dict[str, tuple[int, int]], Field(alias="2K")]
    tier_4k: Annotated[dict[str, tuple[int, int]], Field(alias="4K")]
