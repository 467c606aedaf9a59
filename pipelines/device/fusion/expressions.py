"""The operations that one kernel can compute with the bits that each has alone: sums, differences, products, copies.

They are rounded once, in the same way on every chip. So a kernel that rounds after each of them, and contracts none,
gives the bits of kernels that follow each other. Sums over rows, exponentials and most divisions are left to torch. A
reciprocal root is one instruction of a GPU for torch, too; whether that holds is tried.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_unflatten

from pipelines.device.fusion.recording import Operation, Place, is_dense

DTYPES: Final = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}  # and Triton's names
SYMBOLS: Final = {"add": "+", "sub": "-", "mul": "*"}
TRIED: Final = frozenset({"rsqrt"})  # kinds that may have other bits
COPIES: Final = frozenset({
    "clone", "contiguous", "reshape", "flatten", "unflatten", "_to_copy", "to", "type_as", "_unsafe_view",
})  # fmt: skip
Given = Place | torch.Tensor | float


@dataclass(frozen=True, slots=True)
class Expression:
    """An operation by elements. `size` are the coordinates at which its arguments are read."""

    kind: str  # a symbol of SYMBOLS, "neg", "square", "rsqrt", "copy" or "cat"
    arguments: tuple[Given, ...]
    result: Place
    dim: int = 0  # of "cat"


def expression(operation: Operation, device: torch.device) -> Expression | None:
    """Return an operation as an expression; None if it is left to torch."""
    if operation.mutates or len(operation.results) != 1 or operation.results[0] is None:
        return None
    result = operation.results[0]
    if result.dtype not in DTYPES or not is_dense(result) or math.prod(result.size) == 0:
        return None
    found = _expression(operation, result)
    if found is None or not all(_is_readable(each, device) for each in found.arguments):
        return None
    return found


def _expression(operation: Operation, result: Place) -> Expression | None:
    args, kwargs = tree_unflatten(list(operation.leaves), operation.spec)
    match operation.name:
        case "add" | "sub" | "mul" if len(args) == 2 and kwargs.get("alpha", 1) == 1:
            return Expression(SYMBOLS[operation.name], tuple(args), result)
        case "div" if not kwargs and _is_power_of_two(args[1]):
            return Expression("*", (args[0], 1 / args[1]), result)
        case "rsqrt" if result.dtype == torch.float32:
            return Expression("rsqrt", (args[0],), result)
        case "neg":
            return Expression("neg", (args[0],), result)
        case "pow" if isinstance(args[1], int | float) and args[1] == 2:
            return Expression("square", (args[0],), result)
        case "cat" | "concat":
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            return _joined(tuple(args[0]), dim % max(1, len(result.size)), result)
        case "stack":
            dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(result.size)
            return _joined(tuple(_inserted(each, dim) for each in args[0]), dim, result)
        case name if name in COPIES and isinstance(args[0], Place | torch.Tensor):
            return _copy(args[0], result)
    return None


def _is_power_of_two(value: Any) -> bool:
    """Return whether a division by this number is a product with the same bits."""
    return isinstance(value, int | float) and math.frexp(value)[0] == 0.5


def _joined(parts: tuple[Any, ...], dim: int, result: Place) -> Expression | None:
    alike = all(_dtype(each) == result.dtype and len(each_size(each)) == len(result.size) for each in parts)
    some = len(parts) > 1 and all(math.prod(each_size(each)) for each in parts)
    return Expression("cat", parts, result, dim) if alike and some else None


def _inserted(part: Any, dim: int) -> Any:
    if isinstance(part, Place):
        size, stride = list(part.size), list(part.stride)
        size.insert(dim, 1)
        stride.insert(dim, 0)
        return Place(part.storage, part.dtype, tuple(size), tuple(stride), part.offset)
    return part.unsqueeze(dim)


def _copy(source: Any, result: Place) -> Expression | None:
    """Return a copy, which in another shape lists the elements in the order of the source's coordinates."""
    size = tuple(each_size(source))
    if size == result.size:
        return Expression("copy", (source,), result)
    if any(n != 1 and a != b for n, a, b in zip(result.size, result.stride, _contiguous(result.size), strict=True)):
        return None
    return Expression("copy", (source,), Place(result.storage, result.dtype, size, _contiguous(size), 0))


def _contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a tensor of this size whose last dimension lies side by side."""
    return tuple(math.prod(size[dim + 1 :]) for dim in range(len(size)))


def _is_readable(given: Any, device: torch.device) -> bool:
    if isinstance(given, torch.Tensor):
        plain = given.layout == torch.strided and type(given) in {torch.Tensor, torch.nn.Parameter}
        return (plain or type(given).__name__ == "FakeTensor") and given.dtype in DTYPES and given.device == device
    if isinstance(given, Place):
        return given.dtype in DTYPES
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)


def each_size(given: Any) -> tuple[int, ...]:
    """Return the sizes of an argument; none for a number."""
    if isinstance(given, torch.Tensor):
        return tuple(given.shape)
    return given.size if isinstance(given, Place) else ()


def _dtype(given: Any) -> torch.dtype | None:
    return given.dtype if isinstance(given, torch.Tensor | Place) else None
