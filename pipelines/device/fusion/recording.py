"""What a run does to tensors, written down: its operations in their order, by the memory that they read and write.

Views are no operations here. A tensor is a place: a storage, and how it lies in it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten

UNWRITTEN: Final = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
SIZED_BY_DATA: Final = frozenset({"nonzero", "_unique2", "unique_consecutive", "unique_dim", "masked_select"})
PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor: the number of its storage, and how it lies there. Sizes, strides and offset are in elements."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One call of an operator. `leaves` has a Place for what the run has made; all else is as it was given."""

    func: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: TreeSpec
    results: tuple[Place | None, ...]  # None: of a result that is no tensor
    mutates: bool

    @property
    def name(self) -> str:
        """Return the operator's name, such as "add"."""
        name: str = self.func._schema.name.split("::")[1]  # type: ignore[attr-defined]
        return name

    @property
    def read(self) -> Iterator[Place]:
        """Yield what it takes of what the run has made."""
        return (leaf for leaf in self.leaves if isinstance(leaf, Place))


@dataclass(frozen=True, slots=True)
class Record:
    """The operations of a run, and its outputs' leaves."""

    operations: tuple[Operation, ...]
    outputs: tuple[Any, ...]
    spec: TreeSpec
    changed: frozenset[int]  # storages that operations write to in place


def record(run: Callable[[], Any]) -> tuple[Any, Record | str]:
    """Run it, and return its output with the record, or with the reason why it can't be repeated from one."""
    with _Recorder() as recorder:
        output = run()
    if recorder.unrecordable is not None:
        return output, recorder.unrecordable
    leaves, spec = tree_flatten(output)
    outputs = tuple(recorder.leaf(each) for each in leaves)
    return output, Record(tuple(recorder.operations), outputs, spec, frozenset(recorder.changed))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self.changed: set[int] = set()
        self.unrecordable: str | None = None  # why, first
        self._made: dict[int, tuple[int, StorageWeakRef]] = {}  # which keeps the key from being given to another one
        self._unwritten: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.unrecordable is not None:
            return func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        if name == "detach_":  # which concerns gradients
            return func(*args, **(kwargs or {}))
        given, spec = tree_flatten((args, kwargs or {}))
        leaves = tuple(self.leaf(each) for each in given)
        written = set(self._written(func, args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        made = tree_flatten(result)[0]
        tensors = [each for each in made if isinstance(each, torch.Tensor)]
        if name in SIZED_BY_DATA or (not tensors and any(isinstance(each, bool | int | float) for each in made)):
            self._give_up(f"the host reads {name}")
        elif not tensors and not written:
            pass  # it asked for a device
        elif not all(map(_is_plain, tensors)):
            self._give_up(f"{name} makes more than a tensor")
        elif written or not all(self._is_view(each, given) for each in tensors):
            for leaf in leaves:
                if isinstance(leaf, Place) and leaf.storage in self._unwritten and leaf.storage not in written:
                    self._give_up(f"{name} reads what no operation of torch has written")
            self._unwritten -= written
            self.changed |= written
            results = tuple(self._result(each) for each in made)
            if name in UNWRITTEN:
                self._unwritten |= {each.storage for each in results if each is not None}
            self.operations.append(Operation(func, leaves, spec, results, bool(written)))
        return result

    def _give_up(self, why: str) -> None:
        self.unrecordable = self.unrecordable or why

    def leaf(self, value: Any) -> Any:
        """Return the place of a tensor that the run has made; anything else as it is."""
        if not isinstance(value, torch.Tensor) or not _is_plain(value):
            return value
        known = self._made.get(value.untyped_storage()._cdata)
        return value if known is None else _place(value, known[0])

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[int]:
        """Yield the storages that a call writes to. Those that the run has not made it would change at each
        repetition."""
        if not func._schema.is_mutable:
            return
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[number] if number < len(args) else kwargs.get(argument.name)
                for each in tree_flatten(value)[0]:
                    place = self.leaf(each)
                    if isinstance(place, Place):
                        yield place.storage
                    elif isinstance(each, torch.Tensor):
                        self._give_up(f"{func} changes what the run is given")

    def _is_view(self, tensor: torch.Tensor, given: list[Any]) -> bool:
        storage = tensor.untyped_storage()._cdata
        made = storage in self._made  # a view of what the run was given is kept as it is, whatever its dtype
        return any(
            isinstance(each, torch.Tensor)
            and _is_plain(each)
            and (each.dtype == tensor.dtype or not made)
            and each.untyped_storage()._cdata == storage
            for each in given
        )

    def _result(self, tensor: Any) -> Place | None:
        if not isinstance(tensor, torch.Tensor):
            return None
        storage = tensor.untyped_storage()
        if storage._cdata not in self._made:
            kept = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._made[storage._cdata] = len(self._made), kept
        return _place(tensor, self._made[storage._cdata][0])


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is its numbers in a storage, and nothing that a library has made of one."""
    return tensor.layout == torch.strided and (type(tensor) in PLAIN or type(tensor).__name__ == "FakeTensor")


def _place(tensor: torch.Tensor, storage: int) -> Place:
    return Place(storage, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def is_dense(place: Place) -> bool:
    """Return whether a tensor fills its storage from the start, each element once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(place.stride, place.size, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return place.offset == 0
