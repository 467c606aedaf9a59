"""Rank 0's end of another rank of its process group."""

import os
import queue
import subprocess
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from typing import Final

import torch

from pipelines.images.parallel.messages import Answer, Command, PassFailed
from pipelines.protocol.messages import GROUP_NO_MEMORY_EXIT
from pipelines.protocol.python_command import python_command

RANK_MAIN: Final = "pipelines.images.parallel.rank_main"
EXIT_LIMIT_S: Final = 5.0  # from the end of its pipe, or its kill, until a process has ended


class RankProcess:
    """A rank above 0, and the thread that starts it, receives from it, and sees its end also while a pass waits for it.

    The kernel kills a rank when the thread that started it ends: however rank 0 dies, none is left, not even a
    stopped one. So that thread lives as long as the rank. On it are called `on_failure`, for a pass that raised an
    error there, and `on_end` with the reason, and whether it ran out of memory, for an end that is not by `close`.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device,
        port: int,
        on_failure: Callable[[int, PassFailed], None],
        on_end: Callable[[str, bool], None],
    ) -> None:
        self._rank = rank
        self._on_failure, self._on_end = on_failure, on_end
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._closed = False
        self._pipe, self._far_end = Pipe()
        self._command = python_command(RANK_MAIN, self._far_end.fileno(), rank, size, device.type, port)
        self._threads = str(torch.get_num_threads())  # as rank 0: on a CPU they share the cores
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._live, name=f"rank-{rank}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Return the process id; None until it is started."""
        return self._process.pid if self._process is not None else None

    def send(self, command: Command) -> None:
        """Send a command. Raises OSError when the rank does not listen."""
        self._pipe.send(command)

    def receive(self, limit_s: float) -> Answer:
        """Return the rank's next answer. Blocks for at most `limit_s`. Raises queue.Empty."""
        return self._answers.get(timeout=limit_s)

    def close(self) -> None:
        """End the rank, where rank 0 goes on. Blocks."""
        self._closed = True
        self.kill()
        self._thread.join()

    def kill(self) -> None:
        """Kill the rank and wait until it is gone, but not for long: the kernel may be stuck in a driver."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def _live(self) -> None:
        try:
            descriptors, environment = [self._far_end.fileno()], {**os.environ, "OMP_NUM_THREADS": self._threads}
            self._process = subprocess.Popen(self._command, pass_fds=descriptors, env=environment)
        except OSError as error:
            self._on_end(f"process {self._rank} can't be started: {error}", False)
        finally:
            self._far_end.close()
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                break
            if isinstance(message, PassFailed):
                self._on_failure(self._rank, message)
            else:
                self._answers.put(message)
        if not self._closed:
            status = self._wait()
            self._on_end(f"process {self._rank} has ended ({status})", status == GROUP_NO_MEMORY_EXIT)

    def _wait(self) -> int | None:
        """Wait for the process to end, and return its exit status; None if it is still there."""
        try:
            return self._process.wait(EXIT_LIMIT_S) if self._process is not None else None
        except subprocess.TimeoutExpired:
            return None
