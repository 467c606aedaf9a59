"""The messages in the pipe between rank 0 and another rank. Tensors go by the process group."""

from dataclasses import dataclass

from pipelines.device.failures import is_out_of_memory
from pipelines.images.parallel.packing import Packed
from pipelines.protocol.images import Parallel


@dataclass(frozen=True, slots=True)
class PrepareDenoiser:
    """Sent to a rank above 0: prepare to hold this denoiser. The rank replies with `Answer` before the weights are
    sent."""

    key: int
    denoiser: Packed
    parallel: Parallel


@dataclass(frozen=True, slots=True)
class ReceiveWeights:
    """Sent to a rank when all have room: receive the weights of the last `PrepareDenoiser`."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Sent to a rank: compute this forward pass together with the others."""

    key: int
    number: int
    arguments: Packed


@dataclass(frozen=True, slots=True)
class FreeDenoiser:
    """Sent to a rank: free a denoiser."""

    key: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Sent by a rank: it has started, or has room for a denoiser; or why not."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class PassFailed:
    """Sent by a rank: this forward pass raised an error there. `position` counts the collective operations that were
    called until then."""

    number: int
    position: int
    error: str
    no_memory: bool

    @classmethod
    def of(cls, error: Exception, number: int, position: int) -> "PassFailed":
        """Make the message of an error, which says whether memory ran out."""
        return cls(number, position, f"{type(error).__name__}: {error}", is_out_of_memory(error))


Command = PrepareDenoiser | ReceiveWeights | Forward | FreeDenoiser
