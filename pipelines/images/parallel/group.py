"""Rank 0 of a process group: starts the other ranks, and shares denoisers with them.

The group lives and dies as one. A rank that ends, that fails where the others do not, or that does not come to a
collective operation leaves the others in one that never ends: so this process exits, and the server starts the next
worker. An error that all ranks raise at the same place of a pass leaves nobody waiting, and is the pass's own.
"""

import functools
import inspect
import itertools
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import torch

from pipelines.checkpoints.errors import CheckpointError
from pipelines.device.failures import is_out_of_memory
from pipelines.images.parallel.messages import (
    Answer,
    Command,
    Forward,
    FreeDenoiser,
    PassFailed,
    PrepareDenoiser,
    ReceiveWeights,
    Unpackable,
    pack,
    pack_module,
    unpack,
)
from pipelines.images.parallel.process import RankProcess
from pipelines.images.parallel.process_group import LIMIT, ProcessGroup, open_store
from pipelines.images.parallel.shards import apply_context, divide, reserve, shard
from pipelines.protocol.images import Parallel
from pipelines.protocol.messages import GROUP_NO_MEMORY_EXIT, LOST_GROUP_EXIT
from pipelines.protocol.processes import end_process

START_LIMIT_S: Final = 300.0  # imports on a busy machine
AGREE_S: Final = 10.0  # between the failures of two ranks at the same place of a pass


class Group:
    """The devices of this worker. The other ranks start with the first checkpoint that needs them."""

    def __init__(self, device: torch.device, size: int = 1) -> None:
        self.device = device
        self.size = min(size, torch.cuda.device_count()) if device.type == "cuda" else size
        self._lock = threading.Lock()  # one command, with its collective operations, after another
        self._keys = itertools.count()
        self._process_group: ProcessGroup | None = None
        self._ranks: list[RankProcess] = []
        self._passes = 0
        self._failures: list[PassFailed | None] = [None] * self.size  # by rank, its latest
        self._failed = threading.Condition()
        self._ending = threading.Lock()  # never released

    @property
    def second_device(self) -> torch.device:
        """Return the device after the first; on a CPU the same."""
        return torch.device("cuda", 1) if self.device.type == "cuda" else self.device

    def share(self, denoiser: Any, parallel: Parallel) -> "SharedDenoiser":
        """Distribute a denoiser to all ranks, and return what computes its forward passes on them. Blocks. Raises
        CheckpointError."""
        try:
            packed, weights = pack_module(denoiser)
        except Unpackable as error:
            raise CheckpointError(
                f"runtime.gpus: {type(denoiser).__name__} can't be sent to other processes: {error}"
            ) from error
        with self._lock:
            process_group = self._start()
            key = next(self._keys)
            self._send(PrepareDenoiser(key, packed, parallel))
            answers = [*self._wait_for_answers(LIMIT.total_seconds()), _make_room(denoiser, parallel, process_group)]
            if refused := [answer.error for answer in answers if answer.error is not None]:
                self._send(FreeDenoiser(key))
                raise CheckpointError(f"runtime.gpus: {refused[0]}")
            self._send(ReceiveWeights())
            try:
                if parallel == "tensor":
                    module = denoiser
                    shard(denoiser, weights, process_group)
                else:
                    module = unpack(packed, weights)  # of the same weights: the denoiser itself stays as it is
                    for weight in weights:
                        process_group.send(weight)
                    apply_context(module, process_group.context)
            except Exception as error:
                self.end(f"the weights could not be sent: {error}", is_out_of_memory(error))
        return SharedDenoiser(self, key, denoiser, module, parallel)

    def forward(self, key: int, compute: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Compute one pass on all ranks: `compute(**arguments)` is this rank's part of it."""
        packed, tensors = pack(arguments, lambda tensor: tensor.device.type == self.device.type)
        tensors = [tensor.detach().contiguous() for tensor in tensors]  # no memory for it: nobody waits yet
        with self._lock:
            process_group = self._start()
            self._passes += 1
            self._send(Forward(key, self._passes, packed))
            try:
                for tensor in tensors:
                    process_group.send(tensor)
                return compute(**arguments)
            except Exception as error:
                self._pass_failed(0, PassFailed.of(error, self._passes, process_group.position))
                raise

    def drop(self, key: int) -> None:
        """Free the other ranks' memory of a denoiser. Blocks."""
        with self._lock:
            self._send(FreeDenoiser(key))

    def close(self) -> None:
        """End the other ranks, where this one goes on. Blocks."""
        with self._lock:
            for rank in self._ranks:
                rank.close()
            if self._process_group is not None:
                self._process_group.leave()
            self._process_group, self._ranks = None, []

    def _pass_failed(self, rank: int, failed: PassFailed) -> None:
        """Handle a pass that failed on a rank: here on the pass's thread, or on the thread of that rank. Returns if it
        has failed on all of them at the same place; else a rank waits for one that will not come."""
        with self._failed:
            self._failures[rank] = failed
            self._failed.notify_all()
            if not self._failed.wait_for(lambda: self._all_failed(failed.number), AGREE_S):
                self.end(f"a pass failed in process {rank} alone: {failed.error}", failed.no_memory)
            places = {each.position for each in self._failures if each is not None and each.number == failed.number}
        if len(places) > 1:
            self.end(f"a pass failed at different places: {failed.error}", failed.no_memory)

    def _all_failed(self, number: int) -> bool:
        return all(each is not None and each.number >= number for each in self._failures)

    def end(self, reason: str, no_memory: bool = False) -> NoReturn:
        """End all ranks, this process too. The first reason counts: it is that of the others' ends."""
        self._ending.acquire()
        for rank in self._ranks:
            rank.kill()
        status = GROUP_NO_MEMORY_EXIT if no_memory else LOST_GROUP_EXIT
        end_process(status, f"The group of {self.size} processes ends: {reason}")

    def _start(self) -> ProcessGroup:
        if self._process_group is None:
            store, port = open_store(self.size)
            self._ranks = [
                RankProcess(rank, self.size, self.device, port, self._pass_failed, self.end)
                for rank in range(1, self.size)
            ]
            self._wait_for_answers(START_LIMIT_S)
            self._process_group = ProcessGroup(0, self.size, self.device, store)
        return self._process_group

    def _send(self, command: Command) -> None:
        try:
            for rank in self._ranks:
                rank.send(command)
        except OSError as error:
            self.end(f"a process does not listen: {error}")

    def _wait_for_answers(self, limit_s: float) -> list[Answer]:
        """Return the answers of all other ranks. One that ends meanwhile, or does not answer, ends the group."""
        try:
            return [rank.receive(limit_s) for rank in self._ranks]
        except queue.Empty:
            self.end("a process does not answer")


def _make_room(denoiser: Any, parallel: Parallel, process_group: ProcessGroup) -> Answer:
    """Reserve memory on this rank. Context parallelism, `context`, needs none."""
    try:
        if parallel == "tensor":
            reserve(denoiser, process_group)
    except RuntimeError as error:  # out of memory
        return Answer(f"the first process of the group: {error}")
    return Answer()


class SharedDenoiser:
    """Takes the place of `denoiser.forward`. Passes whose tokens can't be divided are computed here alone."""

    def __init__(self, group: Group, key: int, denoiser: Any, module: Any, parallel: Parallel) -> None:
        self._group = group
        self._key = key
        self._alone = denoiser.forward
        self._together = module.forward if module is denoiser else module
        self._divides = parallel == "context"
        signature = inspect.signature(denoiser.forward)

        @functools.wraps(denoiser.forward)
        def forward(*positional: Any, **named: Any) -> Any:
            return self._forward(dict(signature.bind(*positional, **named).arguments))

        denoiser.forward = forward

    def _forward(self, arguments: dict[str, Any]) -> Any:
        divided = divide(arguments, self._group.size) if self._divides else arguments
        if divided is None:
            return self._alone(**arguments)
        return self._group.forward(self._key, self._together, divided)

    def close(self) -> None:
        """Free the other ranks' memory: the checkpoint is evicted. Blocks."""
        self._group.drop(self._key)
