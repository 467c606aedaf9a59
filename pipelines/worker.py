"""`python -m pipelines.worker FD KIND`: a process that holds the device, for image jobs, for chat or for classifiers.

FD is one end of a socket pair; `pipelines.protocol.messages` says what passes over it. When the other end closes, the
server has died and so does this process, at once, whatever it is doing.
"""

import argparse
import asyncio
import os
import signal
import socket
import threading
import traceback
from typing import TYPE_CHECKING, Any, BinaryIO

from pipelines.device.offline import quiet_libraries
from pipelines.protocol.images import Failed
from pipelines.protocol.messages import (
    Cancel,
    CheckpointState,
    FromWorker,
    Job,
    JobEvent,
    Keep,
    Ping,
    Pong,
    Ready,
    Spec,
    Submit,
    ToWorker,
    Warm,
    frame,
    read_frame,
)

if TYPE_CHECKING:
    import torch


class Link:
    """The worker's end of the socket. Frames are written whole, from the event loop alone."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        self._reader: BinaryIO = self._socket.makefile("rb")
        self._said: list[FromWorker] = []

    def send(self, message: FromWorker) -> None:
        """Have it written, with all else that is said before the event loop goes round: 32 chats' tokens are one."""
        if not self._said:
            asyncio.get_running_loop().call_soon(self._write)
        self._said.append(message)

    def receive(self) -> list[ToWorker]:
        """The next messages; the process ends when there can be none."""
        try:
            messages = [message for message in read_frame(self._reader) if isinstance(message, ToWorker)]
        except OSError:
            messages = []
        if not messages:
            os._exit(0)
        return messages

    def _write(self) -> None:
        said, self._said = self._said, []
        try:
            self._socket.sendall(frame(said))
        except OSError:
            os._exit(0)


async def serve(link: Link, options: argparse.Namespace) -> None:
    """Until the server is gone."""
    inbox: asyncio.Queue[ToWorker] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        while True:
            for message in link.receive():
                loop.call_soon_threadsafe(inbox.put_nowait, message)

    threading.Thread(target=listen, name="link", daemon=True).start()

    quiet_libraries()
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    engine = _engine(options, device)
    link.send(Ready(_describe(device)))
    running: set[asyncio.Task[None]] = set()
    while True:
        match await inbox.get():
            case Submit(job):
                running.add(task := asyncio.create_task(_run(link, engine, job)))
                task.add_done_callback(running.discard)
            case Cancel(job_id):
                engine.cancel(job_id)
            case Ping():
                link.send(Pong())
            case Warm(checkpoints):
                running.add(task := asyncio.create_task(_warm(link, engine, checkpoints)))
                task.add_done_callback(running.discard)
            case Keep(checkpoints):
                engine.keep(checkpoints)


def _engine(options: argparse.Namespace, device: "torch.device") -> Any:
    """The engine of this process; its host sends it jobs of its own kind alone."""
    if options.kind == "chat":
        from pipelines.chat.engine import ChatEngine

        return ChatEngine(device)
    if options.kind == "classify":
        from pipelines.classify.engine import ClassifyEngine

        return ClassifyEngine(device)
    from pipelines.device.memory import Budgets
    from pipelines.images.engine import ImageEngine

    return ImageEngine(device, Budgets.of(device, options.device_gib, options.host_gib))


async def _run(link: Link, engine: Any, job: Job) -> None:
    try:
        async for event in engine.submit(job):
            link.send(JobEvent(job.id, event))
    except Exception as error:  # an engine's own mistake: a job without a last event would wait for ever
        detail = "".join(traceback.format_exception(error))  # the server logs it
        link.send(JobEvent(job.id, Failed("engine_failed", "The engine failed; nothing was charged.", detail)))


async def _warm(link: Link, engine: Any, checkpoints: tuple[Spec, ...]) -> None:
    for spec in checkpoints:
        try:
            abilities = await engine.warm(spec)
        except Exception as error:
            link.send(CheckpointState(spec, "failed", str(error)))
        else:
            link.send(CheckpointState(spec, "loaded", str(spec.path), abilities))


def _describe(device: "torch.device") -> str:
    import torch

    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} (cuda)"
    return f"the CPU ({torch.get_num_threads()} threads)"


def main() -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the server decides
    parser = argparse.ArgumentParser(prog="python -m pipelines.worker", description="Started by the server.")
    parser.add_argument("socket", type=int, help="the file descriptor of a socket to the server")
    parser.add_argument("kind", help="which jobs it is for")
    parser.add_argument("--device-gib", type=float, help="memory for weights on the device")
    parser.add_argument("--host-gib", type=float, help="memory for weights that wait on the host")
    options = parser.parse_args()
    asyncio.run(serve(Link(options.socket), options))


if __name__ == "__main__":
    main()
