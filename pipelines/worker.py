"""`python -m pipelines.worker FD KIND`: a process with one engine, for image jobs, for chat or for classifiers.

FD is one end of a socket pair; `pipelines.protocol.messages` defines the messages. When the other end closes, the
server has died, and this process exits at once.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from pipelines.checkpoints.errors import RETRY_AFTER_S, MemoryTaken, NotServed
from pipelines.checkpoints.memory.host_bytes import host_allocator_limits
from pipelines.checkpoints.memory.shares import CHAT_CACHE_SHARE
from pipelines.device.heap import share_one_arena
from pipelines.device.offline import quiet_libraries
from pipelines.protocol.chat import ChatCapabilities
from pipelines.protocol.engine import Engine, NoDevice
from pipelines.protocol.images import Failed
from pipelines.protocol.machine import is_wsl
from pipelines.protocol.messages import (
    STILL_TRIED,
    AnyEvent,
    Asleep,
    Cancel,
    Capabilities,
    CheckpointState,
    Ending,
    FromWorker,
    Job,
    JobEvent,
    Load,
    NoGpu,
    Ping,
    Pong,
    Ready,
    Sleep,
    Spec,
    Submit,
    ToWorker,
    UnloadExcept,
    WorkerMemory,
    frame,
    read_frame,
)
from pipelines.protocol.processes import before_exit, end_process, importing, leave_signals_to_server

if TYPE_CHECKING:
    import torch

Found = Capabilities | ChatCapabilities | tuple[str, ...] | None  # of a loaded checkpoint
KERNEL_CACHES: Final = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # of oneDNN, and of torch above it
KERNELS: Final = 128

# Each worker has one kind of engine, and its host sends it jobs and specs of that kind only.
AnyEngine = Engine[Any, Any, AnyEvent]


@dataclass(frozen=True, slots=True)
class Hosted:
    """The engine that a worker serves, how the worker announces itself, and its memory."""

    engine: AnyEngine
    ready: Ready
    measure_memory: Callable[[], WorkerMemory]


StartEngine = Callable[[argparse.Namespace, Callable[[FromWorker], None]], Hosted]


class Connection:
    """The worker's end of the socket. Only the event loop writes to it, until the process ends itself."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        self._reader: BinaryIO = self._socket.makefile("rb")
        self._outbox: list[FromWorker] = []
        self._sending = threading.Lock()

    def send(self, message: FromWorker) -> None:
        """Queue a message. All messages of one event-loop iteration go out as one frame, such as 32 chats' tokens."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(message)

    def send_last(self, message: FromWorker) -> None:
        """Send at once, before the process ends."""
        self._outbox.append(message)
        self._flush()

    def tell_end(self, reason: str) -> None:
        """Send why the process ends, from any thread."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(frame([Ending(reason)]))

    def receive(self) -> list[ToWorker]:
        """Return the next messages. Blocks. The process exits when the server has closed the socket."""
        try:
            messages = [message for message in read_frame(self._reader) if isinstance(message, ToWorker)]
        except OSError:
            messages = []
        if not messages:
            os._exit(0)
        return messages

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        try:
            with self._sending:
                self._socket.sendall(frame(messages))
        except OSError:
            os._exit(0)


async def serve(connection: Connection, options: argparse.Namespace, start: StartEngine) -> None:
    """Handle messages until the process exits."""
    inbox: asyncio.Queue[ToWorker] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        while True:
            for message in connection.receive():
                loop.call_soon_threadsafe(inbox.put_nowait, message)

    threading.Thread(target=read, name="connection", daemon=True).start()

    try:
        with importing():
            hosted = start(options, connection.send)
    except NoDevice as error:
        connection.send_last(NoGpu(str(error)))
        return
    engine = hosted.engine
    connection.send(hosted.ready)
    loads = Loads(connection, engine)
    running: set[asyncio.Task[None]] = set()
    while True:
        match await inbox.get():
            case Submit(job):
                running.add(task := asyncio.create_task(_run(connection, engine, job)))
                task.add_done_callback(running.discard)
            case Cancel(job_id):
                engine.cancel(job_id)
            case Ping():
                connection.send(Pong(hosted.measure_memory()))
            case Load(checkpoints):
                running.add(task := asyncio.create_task(loads.load(checkpoints)))
                task.add_done_callback(running.discard)
            case UnloadExcept(checkpoints):
                engine.unload_except(checkpoints)
                loads.give_up_except(checkpoints)
            case Sleep():
                loads.give_up_except(())
                running.add(task := asyncio.create_task(_sleep(connection, engine)))
                task.add_done_callback(running.discard)


def start_engine(options: argparse.Namespace, send: Callable[[FromWorker], None]) -> Hosted:
    """Start the engine of this kind on its device, and return it. Raises NoDevice. Imports torch, which takes
    seconds."""
    quiet_libraries()

    from pipelines.device.choice import choose_device, describe
    from pipelines.device.failures import watch_device
    from pipelines.device.memory import measure_memory
    from pipelines.device.start_checks import check_device

    device = choose_device(options.device)
    problems = check_device(device, options.device, options.devices, options.weights_bytes)
    ready = Ready(describe(device, options.devices), is_gpu=device.type == "cuda", problems=problems)
    return Hosted(_create_engine(options, device, send), ready, partial(watch_device, device, measure_memory, device))


def _create_engine(
    options: argparse.Namespace, device: "torch.device", send: Callable[[FromWorker], None]
) -> AnyEngine:
    from pipelines.device.attention import choose_attention

    choose_attention(device, options.checks)
    if options.kind == "chat":
        from pipelines.chat.engine import ChatEngine
        from pipelines.device.memory import chat_cache_bytes

        return ChatEngine(device, chat_cache_bytes(device, options.chat_cache_share))
    if options.kind == "classify":
        from pipelines.classify.engine import ClassifyEngine

        return ClassifyEngine(device)
    from pipelines.device.memory import Budgets
    from pipelines.images.engine import ImageEngine
    from pipelines.images.parallel.group import Group

    budgets = Budgets.of(
        device, options.device_gib, options.host_gib, options.others_bytes, options.image_workers,
        options.chat_cache_share,
    )  # fmt: skip
    group = Group(device, options.devices)
    return ImageEngine(
        device, budgets, send, options.checks, group, lambda *found: send(_loaded_state(*found, trials_left=True))
    )


async def _run(connection: Connection, engine: AnyEngine, job: Job) -> None:
    try:
        async for event in engine.submit(job):
            connection.send(JobEvent(job.id, event))
    except Exception as error:  # a bug of the engine: without a last event the server would wait forever
        detail = "".join(traceback.format_exception(error))  # the server logs it
        connection.send(JobEvent(job.id, Failed("engine_failed", "The engine failed; nothing was charged.", detail)))


class Loads:
    """Loads what the server says. A checkpoint whose memory other programs have is tried again every `pause_s` until it
    is loaded, or given up: the server need not say so again."""

    def __init__(self, connection: Connection, engine: AnyEngine, pause_s: float = RETRY_AFTER_S) -> None:
        self._connection = connection
        self._engine = engine
        self._pause_s = pause_s
        self._blocked: set[Spec] = set()
        self._retrying: asyncio.Task[None] | None = None

    async def load(self, checkpoints: Iterable[Spec]) -> None:
        """Load checkpoints one after another, and tell the server what became of each."""
        for spec in checkpoints:
            if (state := await self._state_after_load(spec)) is not None:
                self._connection.send(state)
        if self._blocked and (self._retrying is None or self._retrying.done()):
            self._retrying = asyncio.create_task(self._retry())

    def give_up_except(self, checkpoints: Iterable[Spec]) -> None:
        """Try only these again."""
        self._blocked &= set(checkpoints)

    async def _retry(self) -> None:
        while self._blocked:
            await asyncio.sleep(self._pause_s)
            for spec in tuple(self._blocked):
                if spec in self._blocked:
                    state = await self._state_after_load(spec)
                    if spec not in self._blocked and state is not None:  # else the server has been told
                        self._connection.send(state)

    async def _state_after_load(self, spec: Spec) -> CheckpointState | None:
        """Load a checkpoint, and return what became of it; None if it is no longer served."""
        began = time.monotonic()
        self._blocked.discard(spec)
        try:
            found = await self._engine.prepare(spec)
        except NotServed:
            return None
        except Exception as error:
            if waits := isinstance(error, MemoryTaken):
                self._blocked.add(spec)
            return CheckpointState(spec, "failed", str(error), waits_for_memory=waits)
        return _loaded_state(spec, found, time.monotonic() - began)


def _loaded_state(spec: Spec, found: Found, load_s: float, *, trials_left: bool = False) -> CheckpointState:
    capabilities = found if isinstance(found, Capabilities) else None
    chat = found if isinstance(found, ChatCapabilities) else None
    failed_checks = [f"without {what}" for what in capabilities.failed_checks] if capabilities else []
    notes = found.notes if isinstance(found, Capabilities | ChatCapabilities) else found or ()
    detail = "; ".join([str(spec.path), *notes, *failed_checks, *([STILL_TRIED] if trials_left else [])])
    return CheckpointState(spec, "loaded", detail, capabilities, load_s, chat, trials_left)


async def _sleep(connection: Connection, engine: AnyEngine) -> None:
    try:
        await engine.sleep()
    except Exception as error:  # such as no memory on the host: the next worker has all of it
        traceback.print_exc()
        end_process(1, f"The worker could not sleep: {_one_line(error)}")
    connection.send(Asleep())


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def set_environment(kernel_cache: Path | None) -> None:
    """Set the variables that torch reads when it is imported, and when it first uses a GPU; the operator's own values
    stay."""
    # Images come in many sizes: without expandable segments, blocks of memory that fit none of the later ones are kept.
    # Under WSL they fail with many drivers, at the first allocation or in the middle of a load.
    words = list(filter(None, ("" if is_wsl() else "expandable_segments:True", host_allocator_limits())))
    if words and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name, which has precedence
        os.environ.setdefault("PYTORCH_ALLOC_CONF", ",".join(words))
    if kernel_cache is not None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kernel_cache / "inductor"))
        os.environ.setdefault("TRITON_CACHE_DIR", str(kernel_cache / "triton"))


def bound_kernel_caches() -> None:
    """Set how many kernels oneDNN and torch's layer above it keep on a CPU; the operator's own numbers stay.

    They make one for each layer and number of rows, of 0.2 to 0.4 MiB, and keep 1,024: 400 MiB of a chat worker, whose
    prompts have every length. A model has about six kinds of layers, and decodes with few numbers of rows at a time.
    """
    for name in KERNEL_CACHES:
        os.environ.setdefault(name, str(KERNELS))


def main(start: StartEngine = start_engine) -> None:
    """Serve with the engine that `start` makes."""
    # Ctrl-C and service managers signal the whole process group; the server drains first, and then stops the worker
    leave_signals_to_server()
    parser = argparse.ArgumentParser(prog="python -m pipelines.worker", description="Started by the server.")
    parser.add_argument("socket", type=int, help="the file descriptor of a socket to the server")
    parser.add_argument("kind", help="image, chat or classify")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--devices", type=int, default=1, help="GPUs, or processes on the CPU, of an image worker")
    parser.add_argument("--device-gib", type=float, help="memory for weights on the device")
    parser.add_argument("--host-gib", type=float, help="memory for weights that wait on the host")
    parser.add_argument("--others-bytes", type=int, default=0, help="device memory that other workers will use")
    parser.add_argument("--weights-bytes", type=int, default=0, help="of the largest checkpoint")
    parser.add_argument("--image-workers", type=int, default=1, help="how many divide the memory of the host")
    parser.add_argument(
        "--chat-cache-share",
        type=float,
        default=CHAT_CACHE_SHARE,
        help="of the device's memory for chats' keys",
    )
    parser.add_argument("--kernel-cache", type=Path, help="folder for what torch.compile has built")
    parser.add_argument("--checks", type=Path, help="folder for what was tried: checkpoints, kernels")
    options = parser.parse_args()
    share_one_arena()
    set_environment(options.kernel_cache)
    if options.kind == "chat":  # images have as many kinds of layers as there are kernels to keep
        bound_kernel_caches()
    connection = Connection(options.socket)
    before_exit(connection.tell_end)
    try:
        asyncio.run(serve(connection, options, start))
    except Exception as error:  # such as a library of torch that is missing
        traceback.print_exc()
        end_process(1, f"The worker has failed: {_one_line(error)}")


if __name__ == "__main__":
    main()
