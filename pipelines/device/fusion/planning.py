"""Which operations of a record become one kernel: each is computed where its result is read, if it is read once."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import torch

from pipelines.device.fusion.expressions import TRIED, Expression, expression
from pipelines.device.fusion.recording import Operation, Place, Record
from pipelines.device.fusion.simplifying import simplified
from pipelines.device.fusion.source import Source, Unplaceable, source

SMALL: Final = 16  # times fewer elements than what reads it: computed anew by each kernel that does


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """Operations that one kernel computes: the last makes the result."""

    source: Source
    operations: tuple[Operation, ...]
    result: Place

    @property
    def read(self) -> Iterator[Place]:
        """Yield what it takes of what the run has made before."""
        made = {place.storage for each in self.operations for place in each.results if place is not None}
        return (place for each in self.operations for place in each.read if place.storage not in made)


Step = Operation | Fused


def plan(record: Record, device: torch.device, refused: Collection[str]) -> tuple[Step, ...]:
    """Return the steps of a record in which expressions are fused, but for kernels of these texts."""
    record = simplified(record)
    planner = _Planner(record, device)
    while True:
        roots = planner.roots()
        fused = {number: planner.fuse(number, members, refused) for number, members in roots.items()}
        if not planner.changed():
            break
    inside = {number for root, members in roots.items() if fused[root] is not None for number in members}
    steps: list[Step] = []
    for number, operation in enumerate(record.operations):
        step = fused.get(number)
        if step is not None:
            steps.append(step)
        elif number not in inside:
            steps.append(operation)
    return tuple(steps)


class _Planner:
    def __init__(self, record: Record, device: torch.device) -> None:
        self._operations = record.operations
        self._expressions: dict[int, Expression] = {}
        self._readers: dict[int, set[int]] = {}
        self._kept = {each.storage for each in record.outputs if isinstance(each, Place)}  # have to be in memory
        self._before = 0
        for number, operation in enumerate(record.operations):
            for place in operation.read:
                self._readers.setdefault(place.storage, set()).add(number)
            found = expression(operation, device)
            if found is not None and found.result.storage not in record.changed:
                self._expressions[number] = found
                if any(place.storage in record.changed for place in operation.read):
                    self._kept.add(found.result.storage)  # what it reads may be something else by then
            else:
                self._kept |= {place.storage for place in operation.read}

    def changed(self) -> bool:
        """Return whether more has to be in memory than at the last call."""
        before, self._before = self._before, len(self._kept) - len(self._expressions)
        return self._before != before

    def roots(self) -> dict[int, set[int]]:
        """Return the operations whose results have to be in memory, each with those that are computed with it."""
        root_of: dict[int, set[int]] = {}
        for number in sorted(self._expressions, reverse=True):
            place = self._expressions[number].result
            readers = self._readers.get(place.storage, set())
            found = (
                {root for reader in readers for root in root_of[reader]} if place.storage not in self._kept else set()
            )
            if not found or (len(found) > 1 and not self._is_small(place, found)):
                found = {number}
            root_of[number] = found
        roots: dict[int, set[int]] = {}
        for number, found in root_of.items():
            for root in found:
                roots.setdefault(root, set()).add(number)
        return roots

    def _is_small(self, place: Place, roots: set[int]) -> bool:
        sizes = (math.prod(self._expressions[root].result.size) for root in roots)
        return SMALL * math.prod(place.size) <= min(sizes)

    def fuse(self, root: int, members: set[int], refused: Collection[str]) -> Fused | None:
        """Return the kernel of operations; None for one alone, and if others of them have to be in memory first."""
        if len(members) == 1 or not members <= self._expressions.keys():
            return None
        inlined = {self._expressions[each].result.storage: self._expressions[each] for each in members if each != root}
        try:
            made = source(self._expressions[root], inlined)
        except Unplaceable as error:
            if error.storage in inlined:
                self._kept.add(error.storage)
            else:
                self._kept |= set(inlined)
            return None
        if made.text in refused:
            tried = {each for each in members if self._expressions[each].kind in TRIED}
            for each in tried:
                del self._expressions[each]
                self._kept |= {place.storage for place in self._operations[each].read}
            self._kept |= set() if tried else set(inlined)
            return None
        result = self._expressions[root].result
        operations = tuple(self._operations[each] for each in sorted(members))
        return Fused(made, operations, self._operations[root].results[0] or result)
