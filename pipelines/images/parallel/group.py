"""Rank 0 of a group: starts the other ranks, and shares denoisers with them.

The group lives and dies as one. A rank that ends, that fails where the others do not, or that does not come to a
collective operation leaves the others in one that never ends: so this process exits, and the server starts the next
worker. An error that all ranks raise for the same pass leaves nobody waiting, and is the pass's own.
"""

import functools
import inspect
import itertools
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

import torch

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.images.parallel.context import apply_context, divide
from pipelines.images.parallel.messages import Answer, Command, Drop, Fill, Forward, PassFailed, Share
from pipelines.images.parallel.packing import Unpackable, pack, pack_module, unpack
from pipelines.images.parallel.ring import LIMIT, Ring, open_store
from pipelines.images.parallel.shards import shard
from pipelines.protocol.images import Parallel
from pipelines.protocol.messages import LOST_GROUP_EXIT

FOLLOWER: Final = "pipelines.images.parallel.follower"
START_LIMIT_S: Final = 300.0  # imports on a busy machine
AGREE_S: Final = 30.0  # between the failures of two ranks in the same pass


class Group:
    """The devices of this worker. Its processes start with the first checkpoint that needs them."""

    def __init__(self, device: torch.device, size: int = 1) -> None:
        self.device = device
        self.size = min(size, torch.cuda.device_count()) if device.type == "cuda" else size
        self._lock = threading.Lock()  # one command, with its collective operations, after another
        self._keys = itertools.count()
        self._ring: Ring | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        self._answers: list[queue.SimpleQueue[Answer]] = []
        self._closed = False
        self._passes = 0
        self._failures = [0] * self.size  # by rank, the latest pass that failed there
        self._failed = threading.Condition()

    @property
    def second(self) -> torch.device:
        """The device after the first; on a CPU the same."""
        return torch.device("cuda", 1) if self.device.type == "cuda" else self.device

    def share(self, denoiser: Any, parallel: Parallel) -> "SharedDenoiser":
        """Let all ranks compute the denoiser's forward passes. Blocks. Raises CheckpointError."""
        try:
            packed, weights = pack_module(denoiser)
        except Unpackable as error:
            raise CheckpointError(
                f"runtime.gpus: {type(denoiser).__name__} can't be sent to other processes: {error}"
            ) from error
        with self._lock:
            ring = self._start()
            key = next(self._keys)
            self._tell(Share(key, packed, parallel))
            answers = self._wait_for_answers(LIMIT.total_seconds())
            if refused := [answer.error for answer in answers if answer.error is not None]:
                self._tell(Drop(key))
                raise CheckpointError(f"runtime.gpus: {refused[0]}")
            self._tell(Fill())
            try:
                if parallel == "tensor":
                    module = denoiser
                    shard(denoiser, weights, ring)
                else:
                    module = unpack(packed, weights)  # of the same weights: the denoiser itself stays as it is
                    for weight in weights:
                        ring.send(weight)
                    apply_context(module, ring.context)
            except Exception as error:
                self.end(f"the weights could not be sent: {error}")
        return SharedDenoiser(self, key, denoiser, module, parallel)

    def forward(self, key: int, compute: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """One pass on all ranks: `compute(**arguments)` is this rank's part of it."""
        packed, tensors = pack(arguments, lambda tensor: tensor.device.type == self.device.type)
        with self._lock:
            ring = self._start()
            self._passes += 1
            self._tell(Forward(key, self._passes, packed))
            try:
                for tensor in tensors:
                    ring.send(tensor)
                return compute(**arguments)
            except Exception as error:
                self._agree(error)
                raise

    def drop(self, key: int) -> None:
        """Free the other ranks' memory of a denoiser. Blocks."""
        with self._lock:
            self._tell(Drop(key))

    def close(self) -> None:
        """End the other processes, where this one goes on. Blocks."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
                process.wait()
            if self._ring is not None:
                self._ring.leave()
            self._ring = None
            self._processes, self._pipes, self._answers = [], [], []

    def end(self, reason: str) -> NoReturn:
        """End all ranks, this process too."""
        print(f"The group of {self.size} processes ends: {reason}", file=sys.stderr, flush=True)
        for process in self._processes:
            process.kill()
        os._exit(LOST_GROUP_EXIT)

    def _start(self) -> Ring:
        if self._ring is not None:
            return self._ring
        store, port = open_store(self.size)
        for rank in range(1, self.size):
            self._spawn(rank, port)
        self._wait_for_answers(START_LIMIT_S)
        self._ring = Ring(0, self.size, self.device, store)
        return self._ring

    def _spawn(self, rank: int, port: int) -> None:
        ours, theirs = Pipe()
        command = [sys.executable, "-m", FOLLOWER]
        command += [str(part) for part in (theirs.fileno(), rank, self.size, self.device.type, port)]
        self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
        theirs.close()
        self._pipes.append(ours)
        self._answers.append(queue.SimpleQueue())
        threading.Thread(target=self._watch, args=(rank, ours), name=f"rank-{rank}", daemon=True).start()

    def _tell(self, command: Command) -> None:
        try:
            for pipe in self._pipes:
                pipe.send(command)
        except OSError as error:
            self.end(f"a process does not listen: {error}")

    def _wait_for_answers(self, limit_s: float) -> list[Answer]:
        """Of all followers. One that ends meanwhile, or does not answer, ends the group."""
        try:
            return [answers.get(timeout=limit_s) for answers in self._answers]
        except queue.Empty:
            self.end("a process does not answer")

    def _watch(self, rank: int, pipe: Connection) -> None:
        """On a thread for each follower, which sees its end also while a pass waits for it."""
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                if self._closed:
                    return
                self.end(f"process {rank} has ended")
            if isinstance(message, Answer):
                self._answers[rank - 1].put(message)
            elif isinstance(message, PassFailed):
                self._note_failure(rank, message)

    def _note_failure(self, rank: int, failed: PassFailed) -> None:
        with self._failed:
            self._failures[rank] = failed.number
            self._failed.notify_all()
            if not self._failed.wait_for(lambda: self._failures[0] >= failed.number, AGREE_S):
                self.end(f"process {rank} failed alone: {failed.error}")

    def _agree(self, error: Exception) -> None:
        """The pass failed here. If it did not fail everywhere, a rank waits for one that will not come."""
        with self._failed:
            self._failures[0] = self._passes
            self._failed.notify_all()
            if not self._failed.wait_for(lambda: min(self._failures) >= self._passes, AGREE_S):
                self.end(f"a pass failed in the first process alone: {type(error).__name__}: {error}")


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
        """The checkpoint is evicted. Blocks."""
        self._group.drop(self._key)
