"""A record that is repeated with fused operations: the same bits with fewer launches, and fewer reads of memory."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipelines.device.fusion.planning import Fused, Step
from pipelines.device.fusion.recording import Operation, Place, Record

Memory = dict[tuple[int, torch.dtype], torch.Tensor]  # by storage: any tensor that lies in it


class Program:
    """The steps of a record, for the tensors that it was given."""

    def __init__(self, record: Record, steps: Sequence[Step], device: torch.device) -> None:
        self._record = record
        self._device = device
        self._steps = [(step, ended) for step, ended in zip(steps, _ends(record, steps), strict=True)]

    @property
    def fused(self) -> tuple[Fused, ...]:
        """Return the steps that kernels compute."""
        return tuple(step for step, _ in self._steps if isinstance(step, Fused))

    def build(self) -> None:
        """Compile the kernels, unless they are in the folder of kernels. Raises what compilers do."""
        from pipelines.device.fusion.kernels import build  # Triton is not on every platform

        for source, dtype in {each.source.text: (each.source, each.result.dtype) for each in self.fused}.values():
            build(source, dtype, self._device)

    def run(self) -> Any:
        """Repeat the run, and return its output."""
        return self._run(None)

    def differing(self, proven: set[str]) -> set[str]:
        """Repeat the run, and hold each kernel but the proven ones against the operations that it stands for. Returns
        the texts of those that give other bits; those that give the same are proven now."""
        differing: set[str] = set()
        self._run((proven, differing))
        return differing

    def _run(self, trial: tuple[set[str], set[str]] | None) -> Any:
        memory: Memory = {}
        for step, ended in self._steps:
            if isinstance(step, Operation):
                _compute(step, memory)
            else:
                result = self._launch(step, memory)
                memory[step.result.storage, step.result.dtype] = result
                if trial is not None and step.source.text not in trial[0] | trial[1]:
                    self._try(step, memory, *trial)
            for storage in ended:
                for key in [key for key in memory if key[0] == storage]:
                    del memory[key]
        return tree_unflatten([_tensor(each, memory) for each in self._record.outputs], self._record.spec)

    def _launch(self, step: Fused, memory: Memory) -> torch.Tensor:
        from pipelines.device.fusion.kernels import launch

        place = step.result
        result = torch.empty_strided(place.size, place.stride, dtype=place.dtype, device=self._device)
        given = [
            (memory[each.storage, each.dtype] if isinstance(each, Place) else each).as_strided((1,), (1,), 0)
            for each in step.source.tensors
        ]
        launch(step.source, given, result)
        return result

    def _try(self, step: Fused, memory: Memory, proven: set[str], differing: set[str]) -> None:
        apart = dict(memory)
        for operation in step.operations:
            _compute(operation, apart)
        expected, made = (each[step.result.storage, step.result.dtype] for each in (apart, memory))
        memory[step.result.storage, step.result.dtype] = expected
        if not same_bits(expected, made):
            differing.add(step.source.text)
        elif expected.isfinite().all():
            proven.add(step.source.text)


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two results are equal bit for bit, but for which of the NaN they have."""
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    if torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)):
        return True
    if not one.is_floating_point() or not torch.equal(one.isnan(), other.isnan()):
        return False
    one, other = (torch.where(each.isnan(), 0, each).contiguous() for each in (one, other))
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def _compute(operation: Operation, memory: Memory) -> None:
    args, kwargs = tree_unflatten([_tensor(leaf, memory) for leaf in operation.leaves], operation.spec)
    made = tree_flatten(operation.func(*args, **kwargs))[0]
    for place, result in zip(operation.results, made, strict=True):
        if place is not None:
            memory[place.storage, place.dtype] = result


def _tensor(leaf: Any, memory: Memory) -> Any:
    if isinstance(leaf, Place):
        return memory[leaf.storage, leaf.dtype].as_strided(leaf.size, leaf.stride, leaf.offset)
    return leaf


def _ends(record: Record, steps: Sequence[Step]) -> Iterable[tuple[int, ...]]:
    """Return the storages that no step needs after each of them."""
    last: dict[int, float] = {each.storage: math.inf for each in record.outputs if isinstance(each, Place)}
    ends: list[tuple[int, ...]] = []
    for step in reversed(steps):
        results = [step.result] if isinstance(step, Fused) else [each for each in step.results if each is not None]
        found = {each.storage for each in (*step.read, *results)} - last.keys()
        last |= dict.fromkeys(found, 0)
        ends.append(tuple(found))
    return reversed(ends)
