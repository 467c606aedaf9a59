"""The contract between `server` and `pipelines`: what a job is, what an engine says about it.

A job is resolved: no field means "default". All of it can cross a process boundary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Conditioning = Literal["img2img", "native"]
ImageFormat = Literal["png", "jpeg", "webp"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Offload = Literal["none", "model", "group"]
Quantize = Literal["none", "float8", "int8", "int4", "nf4"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """A checkpoint's defaults for every call."""

    guidance: float = 4.0
    strength: float = 0.6
    negative_prompt: str = ""
    scheduler: str | None = None  # a diffusers scheduler class; None keeps the checkpoint's own
    shift: float | None = None  # flow-matching time shift; None keeps the scheduler's own
    refine_strength: float = 0.3  # how far the second pass of a 2K or 4K picture redraws it


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter that is always on."""

    path: Path  # one .safetensors file
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class StepCache:
    """Reuse of a step's work in the next one, by diffusers' cache hooks: faster, and no longer exact."""

    method: Literal["first-block", "taylorseer", "magcache"]
    threshold: float | None = None  # first-block and magcache: how much change may be passed over
    interval: int | None = None  # taylorseer: one step in so many is computed
    mag_ratios: tuple[float, ...] = ()  # magcache: as calibrated for this checkpoint


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a checkpoint sits on the device."""

    dtype: Dtype = "auto"  # bfloat16 on a GPU, float32 on a CPU
    vae_tiling: bool = False  # decode and encode tile by tile: slower, for devices with little memory
    compile: bool = False  # torch.compile of the denoiser's repeated blocks
    offload: Offload = "none"  # weights wait in host memory, part by part or block by block
    quantize: Quantize = "none"  # the denoiser's weights
    cache: StepCache | None = None
    loras: tuple[Lora, ...] = ()
    lora_folder: Path | None = None  # requests may name adapters in here
    max_batch: int | None = None  # pictures in one forward pass; None leaves it to the device
    resident: bool = False  # never gives its memory to another checkpoint


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """One catalog file's checkpoint. Equal specs share one copy of the weights."""

    name: str
    path: Path  # a diffusers folder, or one .safetensors file
    config: Path | None  # the folder of configs that goes with a single file
    family: str
    conditioning: Conditioning
    max_references: int
    native_area_px: int = 1024 * 1024  # the area it was trained to draw
    max_area_px: int = 1_850_000  # the largest area it draws well in one pass
    sampling: Sampling = field(default_factory=Sampling)
    runtime: Runtime = field(default_factory=Runtime)
    refined: bool = False  # some model draws in two passes, which takes an image-to-image or inpaint pipeline
    version: int = 0  # newest change of its files, in ns: other files under the same path are another checkpoint


@dataclass(frozen=True, slots=True)
class Picture:
    """Decoded pixels, upright, row by row: `data` has width * height * channels bytes."""

    width_px: int
    height_px: int
    mode: Literal["RGB", "L"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the finished picture is written. `quality` 0-100 is for jpeg and webp."""

    format: ImageFormat = "png"
    quality: int = 100


@dataclass(frozen=True, slots=True)
class ImageJob:
    """One call. Picture i of n is drawn with seed + i (modulo 2**63)."""

    id: str
    checkpoint: CheckpointSpec
    prompt: str
    negative_prompt: str
    width_px: int  # what is stored, exactly
    height_px: int
    n: int
    steps: int
    guidance: float
    strength: float  # used with img2img references and masks
    seed: int
    references: tuple[Picture, ...]
    mask: Picture | None  # mode "L", the size of the first reference; 255 is painted, 0 is kept
    encoding: Encoding
    metadata: Mapping[str, Any]  # JSON, written into every file; the engine adds each picture's own seed
    time_limit_s: float  # of running, not of waiting
    loras: tuple[tuple[str, float], ...] = ()  # names in the checkpoint's lora_folder, and weights
    previews: int = 0  # how many pictures to come are shown on the way, evenly spread over the steps


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
    """The engine has taken the job."""


@dataclass(frozen=True, slots=True)
class Started:
    """The job has the device; its time limit runs from here."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`step` of `steps` denoising steps are done, over all passes and tiles."""

    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What picture `index` of the job will look like, as far as its latents say: small, in the job's own format.

    `number` counts the previews of that picture from 0.
    """

    index: int
    number: int
    image: EncodedImage


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a job that succeeded."""

    images: tuple[EncodedImage, ...]
    run_s: float  # time on the device; the files are written after it
    unit_s: float  # of it, for a step of a megapixel, as its checkpoint lately takes (pipelines.catalog.estimate)


FailureCode = Literal[
    "engine_failed",
    "out_of_memory",
    "checkpoint_failed",
    "timed_out",
    "cancelled",
    "worker_died",
    "unsupported",
    "context_length_exceeded",
    "invalid_value",
]


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a job that did not. `message` is fit for the caller; `detail` is for the log."""

    code: FailureCode
    message: str
    detail: str = ""
    param: str | None = None  # the field of the request that is to blame


Event = Queued | Started | Progress | Preview | Finished | Failed
