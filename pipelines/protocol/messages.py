"""The messages between the server and a worker process, and their framing.

The two processes share a socket pair. A frame is an 8-byte big-endian length and a pickled list of messages. Pickle is
safe here: both ends run from the same installation, and nothing else can reach the socket.
"""

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple

from pipelines.protocol.chat import ChatCapabilities, ChatEvent, ChatJob, ChatSpec, CountJob
from pipelines.protocol.classify import ClassifierSpec, ClassifyEvent, ClassifyJob
from pipelines.protocol.images import CheckpointSpec, ControlKind, Event, ImageJob, LongPrompt

Job = ImageJob | ChatJob | CountJob | ClassifyJob
Spec = CheckpointSpec | ChatSpec | ClassifierSpec
AnyEvent = Event | ChatEvent | ClassifyEvent
HEADER = struct.Struct(">Q")
DeviceChoice = Literal["auto", "cuda", "cpu"]
JobKind = Literal["image", "chat", "classify"]
ControlledWith = Literal["text", "image", "mask"]  # a prompt alone, with a reference, with a mask too
LOST_DEVICE_EXIT = 87  # exit status of a worker whose device no longer answers
LOST_GROUP_EXIT = 88  # of a worker with several processes, one of which has ended
STILL_TRIED = "what only some calls need is still tried, while it serves"  # in the detail of a checkpoint's state
GROUP_NO_MEMORY_EXIT = 89  # of such a worker, where one of them ran out of memory


@dataclass(frozen=True, slots=True)
class Submit:
    """Server to worker: run this job."""

    job: Job


@dataclass(frozen=True, slots=True)
class Cancel:
    """Server to worker: stop this job within one step."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Load:
    """Server to worker: load and warm up these checkpoints, in this order."""

    checkpoints: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Ping:
    """Server to worker: heartbeat request."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of a GPU in bytes: `total` and `free` of the whole device; `allocated` by the worker, and its most so
    far; `reserved` is that with what its allocator keeps for the next image."""

    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    peak_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The memory that a worker uses: resident memory of its process, and of its GPU if it has one."""

    host_bytes: int
    gpu: GpuMemory | None = None


@dataclass(frozen=True, slots=True)
class Pong:
    """Worker to server: heartbeat reply."""

    memory: WorkerMemory


@dataclass(frozen=True, slots=True)
class UnloadExcept:
    """Server to worker: the catalog names exactly these; evict the others once no job needs them."""

    checkpoints: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Server to worker: move all weights off the device that no job uses, to the host's memory or altogether. A job, or
    `Load`, brings them back."""


@dataclass(frozen=True, slots=True)
class Asleep:
    """Worker to server: it has done what `Sleep` asks."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker to server: imports are done, jobs may be submitted."""

    device: str  # for people
    is_gpu: bool
    problems: tuple[str, ...] = ()  # of the machine, in sentences; the worker goes on


@dataclass(frozen=True, slots=True)
class NoGpu:
    """Worker to server, its last message: it was told to use a GPU and finds none."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ending:
    """Worker to server, its last message: why it ends itself."""

    reason: str


class FailedCheck(NamedTuple):
    """A capability that failed in warmup, and why."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class AdapterFit(NamedTuple):
    """How much of an adapter a checkpoint takes."""

    name: str
    kind: str  # LoRA or LoKr
    layers: int  # that the model has too
    of: int
    left_out: tuple[str, ...] = ()  # what else is in the file and changes nothing here

    @property
    def is_whole(self) -> bool:
        """Return whether the checkpoint takes all of the adapter's layers, and nothing of it was left out."""
        return self.layers == self.of and not self.left_out

    def __str__(self) -> str:
        count = f"{self.layers} layers" if self.layers == self.of else f"{self.layers} of {self.of} layers"
        left_out = f", without {', '.join(self.left_out)}" if self.left_out else ""
        return f"{self.kind}, {count}{left_out}"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities that a loaded image checkpoint has shown, and its measured speed."""

    text: bool  # draws from a prompt alone
    references: int  # how many of them it takes, without a mask
    mask: bool
    second_pass: bool  # redraws tiles of a larger image
    negative_prompt: bool
    guidance: bool
    any_steps: bool  # draws in other numbers of steps than its own
    notes: tuple[str, ...] = ()  # on how it was loaded: what `auto` chose, the error of fp8
    negative_prompt_above: float | None = None  # guidance above which one has an effect, if it is known
    prompt: bool = True  # what it draws depends on a prompt; else one is sent and has no effect
    transparent: bool = False  # draws images with an alpha channel
    layers: bool = False  # takes a reference apart: the images of a job are its layers
    any_ratio: bool = True  # draws other shapes than squares
    at_once: bool = True  # two of its images at once are what each is alone; else they come one after another
    reproducible: bool | None = True  # a seed gives the same image each time; None if that is not known
    unsupported_adapters: tuple[str, ...] = ()  # of lora_folder
    adapter_fits: tuple[AdapterFit, ...] = ()  # of those that were tried
    unsupported_schedulers: tuple[str, ...] = ()  # of those that requests may choose
    unsupported_controls: tuple[str, ...] = ()
    controlnets_with: tuple[ControlledWith, ...] = ()  # what ControlNets work with
    controlnets_at_once: int = 0
    t2i_adapters_with: tuple[ControlledWith, ...] = ()
    t2i_adapters_at_once: int = 0
    ip_adapters_with: tuple[ControlledWith, ...] = ()
    long_prompts: tuple[LongPrompt, ...] = ("refuse", "tell")  # what it can do with a prompt that is too long
    prompt_tokens: int | None = None  # of a prompt that it reads whole, if it has a limit
    failed_checks: tuple[FailedCheck, ...] = ()
    unit_s: float | None = None  # device time of a unit of work, measured in warmup

    @property
    def inputs(self) -> tuple[ControlledWith, ...]:
        """Return what an image can be drawn from."""
        works: dict[ControlledWith, bool] = {"text": self.text, "image": self.references > 0, "mask": self.mask}
        return tuple(way for way in works if works[way])

    def controlled_with(self, kind: ControlKind) -> tuple[ControlledWith, ...]:
        """Return what controls of a kind work with. A checkpoint's own map is in every call."""
        return {
            "controlnet": self.controlnets_with,
            "t2i-adapter": self.t2i_adapters_with,
            "ip-adapter": self.ip_adapters_with,
            "map": self.inputs,
        }[kind]

    @property
    def names(self) -> list[str]:
        """Return the capabilities by the request's fields, for people and clients."""
        has = {
            "text": self.text,
            "image": self.references > 0,
            "mask": self.mask,
            "negative_prompt": self.negative_prompt,
            "guidance": self.guidance,
            "steps": self.any_steps,
            "transparent": self.transparent,
            "layers": self.layers,
        }
        return [name for name, is_there in has.items() if is_there]


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Worker to server: one checkpoint has loaded or failed. One with `trials_left` serves, and another state follows
    once it was tried whole, unless it is unloaded before."""

    spec: Spec
    state: Literal["loaded", "failed"]
    detail: str
    capabilities: Capabilities | None = None  # of a loaded image checkpoint
    load_s: float | None = None  # how long loading it and its warmup took
    chat: ChatCapabilities | None = None  # of a loaded chat checkpoint
    trials_left: bool = False  # of an image checkpoint
    waits_for_memory: bool = False  # that other programs have: the worker tries it again


@dataclass(frozen=True, slots=True)
class CachedCheckpoint:
    """One set of weights in memory. `spec` is one of those that share it."""

    spec: CheckpointSpec
    bytes: int
    on_device: bool  # else offloaded to the host


@dataclass(frozen=True, slots=True)
class CachedCheckpoints:
    """Image worker to server, whenever it changes: which weights are in memory. Those of several checkpoints may have
    components in common, so that `device_bytes` is less than their sum."""

    checkpoints: tuple[CachedCheckpoint, ...]
    device_bytes: int  # of all weights on the device
    budget_bytes: int  # what they may take


@dataclass(frozen=True, slots=True)
class Sharing:
    """Shared engine to server, whenever it changes: how many jobs other servers have there, and whether it is about to
    go and takes no more of them."""

    others_jobs: int = 0
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Worker to server: one event of one job."""

    job_id: str
    event: AnyEvent


ToWorker = Submit | Cancel | Load | UnloadExcept | Sleep | Ping
FromWorker = Ready | NoGpu | Ending | Asleep | Pong | CheckpointState | CachedCheckpoints | Sharing | JobEvent


def frame(messages: Sequence[ToWorker | FromWorker]) -> bytes:
    """Return the messages as one frame, header included."""
    body = pickle.dumps(messages, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> Sequence[ToWorker | FromWorker]:
    """Read the next messages of a blocking stream; none when the other end has closed it."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return ()
    (length,) = HEADER.unpack(header)
    body = stream.read(length)
    if len(body) < length:
        return ()
    messages: Sequence[ToWorker | FromWorker] = pickle.loads(body)
    return messages
