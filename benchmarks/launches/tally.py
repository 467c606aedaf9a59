"""Counting what a GPU is told to do: operations that launch a kernel, the bytes that they read and write, and the
arithmetic of products and attention."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from pipelines.device.graph_capture import Run

Kind = Literal["product", "attention", "small"]
ONE_KERNEL: Final = {"_fused_rms_norm"}  # on a GPU, of what a CPU composes of others
ATTENTION: Final = "scaled_dot_product_attention"  # fused on a GPU, and plain products on the simulated one
COMPARISONS: Final = {"equal", "_local_scalar_dense"}  # for the host: what has no values is as it should be
ALLOCATIONS: Final = ("empty", "new_empty")  # the beginnings of operators that write nothing


class Operation(NamedTuple):
    """What one launch does."""

    kind: Kind
    bytes: int
    flop: int


@dataclass
class Work:
    """What the device did, and what the host launched for it: a graph is one launch."""

    operations: Counter[Operation] = field(default_factory=Counter)
    host_launches: int = 0

    def launches(self, kind: Kind | None = None) -> int:
        """Return the kernels, of one kind or of all."""
        return sum(count for each, count in self.operations.items() if kind in {None, each.kind})

    def bytes(self, kind: Kind) -> int:
        """Return the bytes that operations of a kind read and write."""
        return sum(count * each.bytes for each, count in self.operations.items() if each.kind == kind)

    def flop(self, kind: Kind) -> int:
        """Return the arithmetic of a kind."""
        return sum(count * each.flop for each, count in self.operations.items() if each.kind == kind)


class Tally(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that are dispatched while it is entered, with attention as one fused kernel, and Triton's
    kernels without computing them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = Work()
        self._captured: Counter[Operation] | None = None

    def capture(self, run: Run) -> Run:
        """Do as a CUDA graph does: note what a run launches, and launch all of that at once each time."""
        graph: Counter[Operation] = Counter()
        self._captured = graph
        run()
        self._captured = None

        def replay() -> None:
            self.work.operations += graph
            self.work.host_launches += 1

        return replay

    @contextlib.contextmanager
    def counting(self) -> Iterator[Work]:
        """Count what runs inside."""
        from triton.runtime.interpreter import GridExecutor

        self.work = Work()
        with patch.object(GridExecutor, "__call__", lambda _, *arguments, **__: self._kernel(arguments)), self:
            yield self.work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        space, _, name = func._schema.name.partition("::")
        if space == "prim":  # asks a tensor for its device
            return func(*args, **kwargs)
        if name in COMPARISONS:
            return True
        if name == ATTENTION:
            return self._attention(*args, **kwargs)
        if name not in ONE_KERNEL:
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        made = func(*args, **kwargs)
        given, written = _tensors((args, kwargs)), _tensors(made)
        if name == "copy_":  # which does not read what it writes to
            given = given[1:]
        is_view = not func._schema.is_mutable and _storages(written) <= _storages(given)
        if not is_view and not name.startswith(ALLOCATIONS):
            count = flop_registry.get(func._overloadpacket)
            flop = 0 if count is None else count(*args, **kwargs, out_val=made)
            self._add("small" if count is None else "product", _bytes([*given, *written]), flop)
        return made

    def _attention(self, query: Any, key: Any, value: Any, attn_mask: Any = None, *_: Any, **__: Any) -> torch.Tensor:
        batch, heads, tokens, size = query.shape
        flop = 2 * batch * heads * tokens * key.shape[2] * (size + value.shape[3])
        output: torch.Tensor = query.new_empty(batch, tokens, heads, value.shape[3]).transpose(1, 2)
        self._add("attention", _bytes(_tensors((query, key, value, attn_mask, output))), flop)
        return output

    def _kernel(self, arguments: tuple[Any, ...]) -> None:
        """Count a kernel, which is told where its tensors begin: of each it takes no more elements than its largest
        has."""
        tensors = _tensors(arguments)
        most = max(each.numel() for each in tensors)
        self._add("small", sum(min(each.untyped_storage().nbytes(), most * each.element_size()) for each in tensors), 0)

    def _add(self, kind: Kind, count: int, flop: int) -> None:
        if self._captured is not None:
            self._captured[Operation(kind, count, flop)] += 1
            return
        self.work.operations[Operation(kind, count, flop)] += 1
        self.work.host_launches += 1


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _storages(tensors: list[torch.Tensor]) -> set[int]:
    return {each.untyped_storage()._cdata for each in tensors}


def _bytes(tensors: list[torch.Tensor]) -> int:
    """Return the bytes of tensors; what is expanded lies in memory once."""
    total = 0
    for each in tensors:
        count = each.element_size()
        for length, stride in zip(each.shape, each.stride(), strict=True):
            count *= length if stride else 1
        total += count
    return total
