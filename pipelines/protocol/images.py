"""Image jobs, the checkpoints they name, and the events of a job.

Every field of a job has its final value. All of it is pickled from process to process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pipelines.protocol.provenance import DigitalSource
from pipelines.protocol.tiers import ServiceTier
from pipelines.protocol.upstream import ImageUpstream

UPSCALER_TILE_PX = 256 * 256  # the area of an upscaler's tile, where its catalog file has none
Conditioning = Literal["img2img", "native", "upscale"]  # the last draws nothing: it enlarges its reference
ImageFormat = Literal["png", "jpeg", "webp"]
Background = Literal["opaque", "transparent"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Enlarge = Literal["redraw", "resize"]
Offload = Literal["none", "encoders", "model", "group"]
Quantize = Literal["none", "fp8", "float8", "int8", "int4", "nf4"]
Batch = Literal["merged", "exact"]
Parallel = Literal["auto", "context", "tensor", "encoders"]
ControlKind = Literal["controlnet", "t2i-adapter", "ip-adapter", "map"]  # the last is the checkpoint's own
Scalar = str | int | float | bool
SchedulerConfig = tuple[tuple[str, Scalar], ...]
LongPrompt = Literal["refuse", "tell", "chunk"]  # what becomes of a prompt that no text encoder reads whole


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """A checkpoint's sampling, where a request sets nothing: [sampling] of its catalog file."""

    guidance: float = 4.0
    strength: float = 0.6
    negative_prompt: str = ""
    scheduler: str | None = None  # a diffusers scheduler class; None keeps the checkpoint's own
    shift: float | None = None  # flow-matching time shift; None keeps the scheduler's own
    refine_strength: float = 0.3  # strength of the second pass of a 2K or 4K image
    scheduler_config: SchedulerConfig = ()  # over the checkpoint's scheduler_config.json; by key, sorted
    long_prompt: LongPrompt = "tell"  # "chunk" reads all of it, in windows or up to the longest that a class takes

    def resolve(self, steps: int, **overrides: Any) -> "Sampling":
        """Return the defaults, replaced by the values that a request sets. Raises TypeError for a name that is not a
        field."""
        defaults = {each.name: getattr(self, each.name) for each in fields(SamplingDefaults)}
        return Sampling(**{**defaults, "steps": steps, **overrides})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(SamplingDefaults):
    """Every setting that changes the output of a forward pass or the scheduler.

    Each image has a pipeline call and a scheduler of its own, so images that differ in it share forward passes
    where the denoiser's arguments agree (pipelines.images.denoising.merging).
    """

    steps: int
    loras: tuple[tuple[str, float], ...] = ()  # names in the checkpoint's lora_folder, and weights; sorted
    batch: Batch | None = None  # "exact": its passes are its own, whatever the checkpoint's runtime says


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter that every job of the checkpoint uses."""

    path: Path  # one .safetensors file
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class StepCache:
    """Reuse of a step's work in the next one, by diffusers' cache hooks: faster, and no longer exact."""

    method: Literal["first-block", "taylorseer", "magcache"]
    threshold: float | None = None  # first-block and magcache: the change of the residual below which a step is skipped
    interval: int | None = None  # taylorseer: every interval-th step is computed
    mag_ratios: tuple[float, ...] = ()  # magcache: as calibrated for this checkpoint


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a checkpoint is loaded: [runtime] of its catalog file."""

    dtype: Dtype = "auto"  # bfloat16 on a GPU, float32 on a CPU
    vae_tiling: bool = False  # decode and encode tile by tile: slower, for devices with little memory
    compile: bool = False  # torch.compile of the denoiser's repeated blocks, with fused projections of attention
    offload: Offload = "none"  # weights stay in host memory, and are copied when they are needed
    quantize: Quantize = "none"  # the denoiser's weights
    cache: StepCache | None = None
    loras: tuple[Lora, ...] = ()
    lora_folder: Path | None = None  # requests may name adapters in here
    embedding_folder: Path | None = None  # prompts may name the embeddings in here: <name>
    batch: Batch = "merged"  # images share forward passes; "exact" draws each as if it were alone, bit for bit
    max_batch: int | None = None  # images in one forward pass; None leaves it to what was measured
    resident: bool = False  # never evicted for another checkpoint
    attention: str | None = None  # a backend of diffusers by its name; None is torch's own choice
    gpus: int = 1  # of its image worker, that an image is drawn on
    parallel: Parallel = "auto"  # how it is divided over several
    auto: bool = False  # quantize and offload are chosen when it is loaded, by the memory of device and host
    page_lock: bool = True  # what waits on the host, for fast copies; loading leaves it out where that has no room


@dataclass(frozen=True, slots=True)
class Control:
    """A network that requests may name, with an image for it: a ControlNet or T2I-Adapter follows a map, such as edges
    or depth; an IP-Adapter takes over an image's style or content. A "map" is no network: the checkpoint itself draws
    from one with every call."""

    name: str
    kind: ControlKind
    path: Path  # a network's folder, or an IP-Adapter's .safetensors file; the checkpoint's, of its own map
    map: str = ""  # the kind of map that is followed, for people
    strength: float = 1.0  # unless a request says
    mode: int | None = None  # control_mode, of a ControlNet for several kinds of maps
    image_encoder: Path | None = None  # the folder of the encoder that an IP-Adapter was trained with


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """One catalog file's checkpoint. Equal specs share one copy of the weights."""

    name: str
    path: Path  # a diffusers folder, or one .safetensors or .gguf file; of an upstream's model its address, not a file
    config: Path | None  # the folder of configs that goes with a single file of a whole checkpoint
    family: str
    conditioning: Conditioning
    max_references: int
    native_area_px: int = 1024 * 1024  # the area it was trained to draw
    max_area_px: int = 1_850_000  # the largest area it draws well in one pass
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    runtime: Runtime = field(default_factory=Runtime)
    refined: bool = False  # one of its models needs the second pass: an image-to-image or inpaint pipeline
    version: str = ""  # of the files in `paths` (pipelines.checkpoints.folder.versions): others are another checkpoint
    adapters_version: str = ""  # of lora_folder's: others are other capabilities of the same weights
    enlarge: Enlarge = "redraw"  # images above max_area_px are redrawn in tiles, or only scaled
    schedulers: tuple[str, ...] = ()  # that a request may choose, beside its own
    sheet: bool = False  # references beyond what it takes are offered as one image
    base: Path | None = None  # the diffusers folder with the other components, if `path` is a denoiser alone
    upstream: ImageUpstream | None = None  # the server that draws it, in place of the workers here
    controls: tuple[Control, ...] = ()  # that requests may name
    parts: tuple[tuple[str, Path], ...] = ()  # in place of its own: "vae", "denoiser", ... and a folder or file
    source: str = field(default="", compare=False)  # the catalog file that names it, for people: the first, of several

    @property
    def own_map(self) -> Control | None:
        """Return the map that the checkpoint draws from with every call, as a control; None of most."""
        return next((control for control in self.controls if control.kind == "map"), None)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return all folders and files that the checkpoint is loaded from, each once; none of another server's."""
        if self.upstream is not None:
            return ()
        of_parts = (path for _, path in self.parts)
        of_controls = (path for control in self.controls for path in (control.path, control.image_encoder))
        of_loras = (lora.path for lora in self.runtime.loras)
        of_words = self.runtime.embedding_folder
        found = (self.path, self.base, self.config, *of_parts, *of_controls, *of_loras, of_words)
        return tuple(dict.fromkeys(path for path in found if path is not None))


@dataclass(frozen=True, slots=True)
class RawImage:
    """Decoded pixels, upright, row by row: `data` has width * height * channels bytes."""

    width_px: int
    height_px: int
    mode: Literal["RGB", "L"]
    data: bytes


class Box(NamedTuple):
    """A part of an image, in px."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class ControlInput:
    """One of the checkpoint's controls in a job: its map or its reference, and how strong it is."""

    name: str
    image: RawImage
    strength: float


@dataclass(frozen=True, slots=True)
class Encoding:
    """The file format. `quality` 0-100 is for jpeg and webp. `source` is written as the mark that a model made the
    image; None writes none. A transparent `background` keeps the alpha channel, which jpeg can't."""

    format: ImageFormat = "png"
    quality: int = 100
    source: DigitalSource | None = "trainedAlgorithmicMedia"
    background: Background = "opaque"


@dataclass(frozen=True, slots=True)
class ImageJob:
    """One call. Image i of n has seed + i (modulo 2**63)."""

    id: str
    checkpoint: CheckpointSpec
    prompt: str
    sampling: Sampling
    width_px: int  # of the finished file
    height_px: int
    n: int
    seed: int
    references: tuple[RawImage, ...]
    mask: RawImage | None  # mode "L", the size of the first reference; 255 is repainted, 0 left, between blended
    encoding: Encoding
    metadata: Mapping[str, Any]  # JSON, written into every file; the engine adds each image's own seed
    time_limit_s: float  # of device time; waiting in the queue does not count
    owner: str = ""  # opaque, equal for the jobs of one API key: the device goes round by it
    controls: tuple[ControlInput, ...] = ()  # in the order of the checkpoint's
    sheet_from: int | None = None  # references from this index on are shown on one sheet
    enlarges: bool = False  # its reference is enlarged to the size, and redrawn in tiles: a second pass alone
    region: Box | None = None  # of the finished image, around a small hole in the mask: all that is drawn
    previews: int = 0  # intermediate images of each image, evenly spread over the steps
    tier: ServiceTier = "default"


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One finished file."""

    data: bytes
    media_type: str
    width_px: int
    height_px: int
    seed: int


@dataclass(frozen=True, slots=True)
class Queued:
    """The engine has accepted the job."""


@dataclass(frozen=True, slots=True)
class Started:
    """The job has started on the device; its time limit counts from here."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`step` of `steps` denoising steps are done, over all passes and tiles."""

    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class Preview:
    """Image `index` of the job as predicted from the latents of a running step: small, in the job's own format.

    `number` counts the previews of that image from 0.
    """

    index: int
    number: int
    image: EncodedImage


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a job that succeeded."""

    images: tuple[EncodedImage, ...]
    run_s: float  # device time, without encoding the files; a shared forward pass counts in parts
    unit_s: float  # device time of a unit of work on this checkpoint, smoothed (pipelines.checkpoints.work.estimate)
    merged: bool = False  # a forward pass was shared with other images, which may change low bits
    found: Mapping[str, Any] = field(default_factory=dict)  # JSON: what drawing showed, for the answer's parameters


FailureCode = Literal[
    "queue_full",
    "upstream_busy",
    "upstream_failed",
    "upstream_limited",
    "upstream_refused",
    "upstream_rejected",
    "moderation_blocked",
    "engine_failed",
    "invalid_picture",
    "out_of_memory",
    "memory_taken",
    "checkpoint_failed",
    "timed_out",
    "cancelled",
    "worker_died",
    "unsupported",
    "context_length_exceeded",
    "invalid_value",
    "prompt_too_long",
]
Movable = Literal["anywhere", "larger"]


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a failed job. `message` is shown to the client; `detail` is for the log."""

    code: FailureCode
    message: str
    detail: str = ""
    param: str | None = None  # the request's field that caused it
    retry_after_s: float | None = None  # when to try again, if that may help
    read_part: float | None = None  # of a prompt that is too long
    context: tuple[int, int] | None = None  # the tokens of a conversation that is too long, and those that fit
    movable: Movable | None = None  # another worker may run it: any, if it has not started, or one with more memory


Event = Queued | Started | Progress | Preview | Finished | Failed
