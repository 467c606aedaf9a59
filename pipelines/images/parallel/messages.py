"""The messages in the pipe between rank 0 and another rank. Tensors go by the process group."""

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from pipelines.device.failures import is_out_of_memory
from pipelines.protocol.images import Parallel

PLAIN: Final = {torch.Tensor, nn.Parameter, nn.Buffer}  # others, such as quantized ones, are more than their bytes


class Unpackable(Exception):
    """An object has a tensor of a kind that can't be sent, or no pickle."""


@dataclass(frozen=True, slots=True)
class Form:
    """The shape and dtype of a tensor that is sent separately from the pickle."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parameter: bool


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickled object in which indices into `forms` stand for the tensors that are sent separately."""

    data: bytes
    forms: tuple[Form, ...]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, apart: Callable[[torch.Tensor], bool]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._apart = apart
        self._numbers: dict[int, int] = {}
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, value: object) -> int | None:
        if not isinstance(value, torch.Tensor) or not self._apart(value):
            return None
        if type(value) not in PLAIN:
            raise Unpackable(f"its weights are {type(value).__name__}s")
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self._numbers[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> torch.Tensor:
        return self._tensors[number]


def pack(value: Any, apart: Callable[[torch.Tensor], bool]) -> tuple[Packed, list[torch.Tensor]]:
    """Pickle an object without the tensors for which `apart` is true, and return both, the tensors in the order of its
    forms. Raises Unpackable."""
    file = io.BytesIO()
    pickler = _Pickler(file, apart)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Unpackable(str(error)) from error
    forms = [Form(tuple(each.shape), each.dtype, isinstance(each, nn.Parameter)) for each in pickler.tensors]
    return Packed(file.getvalue(), tuple(forms)), pickler.tensors


def unpack(packed: Packed, tensors: Sequence[torch.Tensor]) -> Any:
    """Build the object again, with these tensors in it."""
    return _Unpickler(io.BytesIO(packed.data), tensors).load()


def pack_module(module: nn.Module) -> tuple[Packed, list[torch.Tensor]]:
    """Pickle a module without its parameters and buffers, and return both. Other tensors that it holds, such as tables
    of positions, stay in the pickle. Raises Unpackable."""
    weights = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    return pack(module, lambda tensor: id(tensor) in weights)


def unpack_module(packed: Packed) -> tuple[Any, list[torch.Tensor]]:
    """Build the module again with weights that have no memory yet, and return it with these, in order."""
    weights = [torch.empty(form.shape, dtype=form.dtype, device="meta") for form in packed.forms]
    weights = [
        nn.Parameter(weight, requires_grad=False) if form.parameter else weight
        for weight, form in zip(weights, packed.forms, strict=True)
    ]
    return unpack(packed, weights), weights


def replace_weights(module: nn.Module, new: dict[int, torch.Tensor]) -> None:
    """Replace a module's weights by new ones, by the identity of the old ones; tied ones stay tied."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and id(parameter) in new:
                weight = new[id(parameter)]
                own = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
                part._parameters[name] = new[id(parameter)] = own
        for name, buffer in part._buffers.items():
            if buffer is not None and id(buffer) in new:
                part._buffers[name] = new[id(buffer)]


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
