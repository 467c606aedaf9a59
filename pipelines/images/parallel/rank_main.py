"""`python -m pipelines.images.parallel.rank_main PIPE RANK SIZE DEVICE PORT`: a rank above 0.

It carries out rank 0's commands, in order. When rank 0 is gone, it ends at once, also in the middle of a pass.
"""

import argparse
import ctypes
import os
import queue
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any, Final

from pipelines.device.offline import quiet_libraries

quiet_libraries()

import torch  # noqa: E402

from pipelines.device.failures import clear_frames, is_out_of_memory  # noqa: E402
from pipelines.device.memory import free_memory  # noqa: E402
from pipelines.images.parallel.messages import (  # noqa: E402  # noqa: E402
    Answer,
    Command,
    Forward,
    FreeDenoiser,
    PassFailed,
    PrepareDenoiser,
    ReceiveWeights,
    replace_weights,
    unpack,
    unpack_module,
)
from pipelines.images.parallel.process_group import ProcessGroup, join_store  # noqa: E402
from pipelines.images.parallel.shards import (  # noqa: E402
    apply_context,
    reserve,
    shard,
)
from pipelines.protocol.messages import GROUP_NO_MEMORY_EXIT  # noqa: E402
from pipelines.protocol.processes import leave_signals_to_server  # noqa: E402

PR_SET_PDEATHSIG: Final = 1


class RankDenoisers:
    """The denoisers of a rank above 0."""

    def __init__(self, pipe: Connection, group: ProcessGroup) -> None:
        self._pipe = pipe
        self._group = group
        self._denoisers: dict[int, Any] = {}
        self._sharing: tuple[PrepareDenoiser, Any, list[torch.Tensor], list[torch.Tensor]] | None = None

    def handle(self, command: Command) -> None:
        """Carry out one command."""
        match command:
            case PrepareDenoiser():
                self._make_room(command)
            case ReceiveWeights():
                self._fill()
            case Forward(key, number, arguments):
                inputs = unpack(arguments, self._group.receive_all(arguments.forms))
                try:
                    with torch.no_grad():
                        self._denoisers[key](**inputs)
                except Exception as error:
                    traceback.print_exc()
                    failed = PassFailed.of(error, number, self._group.position)
                    if failed.no_memory:
                        clear_frames(error)
                        free_memory(self._group.device)  # it may be tried again
                    self._pipe.send(failed)
            case FreeDenoiser(key):
                self._denoisers.pop(key, None)
                self._sharing = None  # another rank had no room for it
                free_memory(self._group.device)

    def _make_room(self, command: PrepareDenoiser) -> None:
        """Reserve memory before rank 0 sends, so that a device without room is an error of the checkpoint."""
        denoiser, weights = unpack_module(command.denoiser)
        room: list[torch.Tensor] = []
        try:
            if command.parallel == "tensor":
                reserve(denoiser, self._group)
            else:
                room = [torch.empty(each.shape, dtype=each.dtype, device=self._group.device) for each in weights]
        except RuntimeError as error:  # out of memory
            self._pipe.send(Answer(f"process {self._group.rank} of the group: {error}"))
            return
        self._sharing = command, denoiser, weights, room
        self._pipe.send(Answer())

    def _fill(self) -> None:
        if self._sharing is None:
            raise RuntimeError("weights without a denoiser")
        command, denoiser, weights, room = self._sharing
        self._sharing = None
        if command.parallel == "tensor":
            shard(denoiser, weights, self._group)
        else:
            filled = [self._group.fill(target) for target in room]
            replace_weights(denoiser, {id(old): new for old, new in zip(weights, filled, strict=True)})
            apply_context(denoiser, self._group.context)
        self._denoisers[command.key] = denoiser


def main() -> None:
    """Serve until rank 0 is gone. Any error that is not a pass's own ends the process, and so the group."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # also while it is stopped, or stuck in an exchange
    leave_signals_to_server()
    parser = argparse.ArgumentParser(description="Started by a worker.")
    parser.add_argument("pipe", type=int)
    parser.add_argument("rank", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("device", type=torch.device)
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    pipe = Connection(options.pipe)
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def read() -> None:
        while True:
            try:
                inbox.put(pipe.recv())
            except (EOFError, OSError):
                os._exit(0)

    threading.Thread(target=read, name="pipe", daemon=True).start()
    pipe.send(Answer())
    store = join_store(options.port, options.size)
    denoisers = RankDenoisers(pipe, ProcessGroup(options.rank, options.size, options.device, store))
    while True:
        try:
            denoisers.handle(inbox.get())
        except Exception as error:
            traceback.print_exc()
            os._exit(GROUP_NO_MEMORY_EXIT if is_out_of_memory(error) else 1)


if __name__ == "__main__":
    main()
