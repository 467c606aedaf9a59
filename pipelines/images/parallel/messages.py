"""What goes through the pipe between rank 0 and a follower. Tensors go by the ring."""

from dataclasses import dataclass

from pipelines.device.failures import is_out_of_memory
from pipelines.images.parallel.packing import Packed
from pipelines.protocol.images import Parallel


@dataclass(frozen=True, slots=True)
class Share:
    """To a follower: hold this denoiser. It answers with `Answer` before the weights are sent."""

    key: int
    denoiser: Packed
    parallel: Parallel


@dataclass(frozen=True, slots=True)
class Fill:
    """To a follower, when all have room: receive the weights of the last `Share`."""


@dataclass(frozen=True, slots=True)
class Forward:
    """To a follower: compute this forward pass together."""

    key: int
    number: int
    arguments: Packed


@dataclass(frozen=True, slots=True)
class Drop:
    """To a follower: forget a denoiser."""

    key: int


@dataclass(frozen=True, slots=True)
class Answer:
    """From a follower: it has started, or has room for a denoiser; or why not."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class PassFailed:
    """From a follower: this forward pass raised an error there. `position` counts the collective operations that were
    called until then."""

    number: int
    position: int
    error: str
    no_memory: bool

    @classmethod
    def of(cls, error: Exception, number: int, position: int) -> "PassFailed":
        return cls(number, position, f"{type(error).__name__}: {error}", is_out_of_memory(error))


Command = Share | Fill | Forward | Drop
