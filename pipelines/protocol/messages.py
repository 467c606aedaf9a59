"""What passes between the server and a worker process, and how it is framed.

The two ends share a socket pair. A frame is an 8-byte big-endian length and a pickle of some messages, those that came
up together: both ends are ours, started from the same installation, and nothing else can reach the socket.
"""

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal

from pipelines.protocol.chat import ChatEvent, ChatJob, ChatSpec, CountJob
from pipelines.protocol.classify import ClassifierSpec, ClassifyEvent, ClassifyJob
from pipelines.protocol.images import CheckpointSpec, Event, ImageJob

Job = ImageJob | ChatJob | CountJob | ClassifyJob
Spec = CheckpointSpec | ChatSpec | ClassifierSpec
HEADER = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Submit:
    """Server to worker: run this job."""

    job: Job


@dataclass(frozen=True, slots=True)
class Cancel:
    """Server to worker: stop this job within one step."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Warm:
    """Server to worker: load these checkpoints now, in this order."""

    checkpoints: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Ping:
    """Server to worker: are you there?"""


@dataclass(frozen=True, slots=True)
class Pong:
    """Worker to server: yes."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Server to worker: the catalog names these and no others; the rest may go once no job needs it."""

    checkpoints: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker to server: imports are done, jobs are welcome."""

    device: str


@dataclass(frozen=True, slots=True)
class Abilities:
    """What requests may ask of a loaded checkpoint, and what its work takes."""

    img2img: bool
    inpaint: bool
    negative_prompt: bool
    guidance: bool
    unit_s: float | None = None  # of device time for a step of a megapixel, as seen while warming


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Worker to server: what became of one checkpoint."""

    spec: Spec
    state: Literal["loaded", "failed"]
    detail: str
    abilities: Abilities | None = None  # once it is loaded


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Worker to server: one event of one job."""

    job_id: str
    event: Event | ChatEvent | ClassifyEvent


ToWorker = Submit | Cancel | Warm | Keep | Ping
FromWorker = Ready | Pong | CheckpointState | JobEvent


def frame(messages: Sequence[ToWorker | FromWorker]) -> bytes:
    """The messages as one frame, header included."""
    body = pickle.dumps(messages, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> Sequence[ToWorker | FromWorker]:
    """The next messages of a blocking stream; none when the other end has closed it."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return ()
    (length,) = HEADER.unpack(header)
    body = stream.read(length)
    if len(body) < length:
        return ()
    messages: Sequence[ToWorker | FromWorker] = pickle.loads(body)
    return messages
