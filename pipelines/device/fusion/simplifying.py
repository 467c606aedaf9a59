"""What a record need not compute: results that it has already, and tensors that are joined of their own parts."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Final

import torch
from torch.utils._pytree import tree_unflatten

from pipelines.device.fusion.recording import UNWRITTEN, Operation, Place, Record, is_dense

JOINS: Final = frozenset({"cat", "concat"})


def simplified(record: Record) -> Record:
    """Return a record with the same results that leaves out such operations: each block of a transformer computes the
    activation of the same embedding, and joins the streams that the block before has just divided."""
    found: dict[int, Place] = {}  # storages that are not computed: what has their elements from its offset on
    known: dict[Hashable, tuple[Place | None, ...]] = {}
    kept: list[Operation] = []

    def now(leaf: Any) -> Any:
        if isinstance(leaf, Place) and leaf.storage in found:
            place = found[leaf.storage]
            return replace(leaf, storage=place.storage, offset=leaf.offset + place.offset)
        return leaf

    for operation in record.operations:
        step = replace(operation, leaves=tuple(map(now, operation.leaves)))
        if not _is_pure(step, record.changed):
            kept.append(step)
        elif (whole := _whole(step)) is not None:
            found[whole[0].storage] = whole[1]
        else:
            same = known.setdefault(_identity(step), step.results)
            if same is step.results:
                kept.append(step)
            else:
                pairs = zip(step.results, same, strict=True)
                found |= {one.storage: replace(other, offset=0) for one, other in pairs if one and other}
    return replace(record, operations=tuple(kept), outputs=tuple(map(now, record.outputs)))


def _is_pure(operation: Operation, changed: frozenset[int]) -> bool:
    places = [*operation.read, *(each for each in operation.results if each is not None)]
    random = torch.Tag.nondeterministic_seeded in getattr(operation.func, "tags", ())
    fresh = not ({each.storage for each in operation.results if each} & {each.storage for each in operation.read})
    return fresh and not random and operation.name not in UNWRITTEN and not any(p.storage in changed for p in places)


def _identity(operation: Operation) -> Hashable:
    """Return what is equal for operations that compute the same."""

    def of(leaf: Any) -> Hashable:
        known = isinstance(leaf, Place | bool | int | float | str | torch.dtype | torch.device) or leaf is None
        return repr(leaf) if known else id(leaf)  # 0.0 equals -0.0

    return operation.func, tuple(map(of, operation.leaves)), str(operation.spec)


def _whole(operation: Operation) -> tuple[Place, Place] | None:
    """Return the result of a join, and what it is a view of, if its parts follow each other in one tensor."""
    if operation.name not in JOINS or operation.results[0] is None:
        return None
    args, kwargs = tree_unflatten(list(operation.leaves), operation.spec)
    parts, result = args[0], operation.results[0]
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % max(1, len(result.size))
    if not all(isinstance(each, Place) and each.dtype == result.dtype for each in parts) or not is_dense(result):
        return None
    first, end = parts[0], parts[0].offset
    for part in parts:
        if part.storage != first.storage or part.offset != end or len(part.size) != len(result.size):
            return None
        if any(n > 1 and a != b for n, a, b in zip(result.size, part.stride, result.stride, strict=True)):
            return None
        end = part.offset + part.size[dim] * part.stride[dim]
    return result, first
