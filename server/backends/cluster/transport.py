"""A server's end of an engine that is a Ray actor: one stream of messages down, one call at a time up.

Ray keeps no order between calls that run at once, so there is never more than one; messages that come up meanwhile go
with the next. A call without messages tells the engine every few seconds that this server is alive.
"""

import asyncio
import io
import itertools
import pickle
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from pipelines.protocol.images import RawImage
from pipelines.protocol.messages import DeviceChoice, FromWorker, Submit, ToWorker
from pipelines.protocol.raw_image_file import RawImageFile
from server.backends.cluster.node_properties import NodeProperties
from server.backends.cluster.shared_engine import LINK_SILENCE_S, LinkMessages

NAMESPACE = "darkroom"  # of Ray's named actors
OPEN_LIMIT_S = 10.0  # until an engine that is there answers
ALIVE_EVERY_S = 3.0


class RayLauncher:
    """Satisfies `server.backends.transport.Launcher`, for the engine of that name and a server with these
    properties."""

    owns_worker = False

    def __init__(self, name: str, properties: NodeProperties) -> None:
        self._name = name
        self._properties = properties
        self._server = uuid.uuid4().hex[:12]
        self._lives = itertools.count()

    async def open(self, device: DeviceChoice) -> "RayTransport":
        """Return a link to the engine. Raises OSError. The device is the engine's to choose, so `device` is not
        used."""
        name = f"{self._server}-{next(self._lives)}"
        try:
            actor = await asyncio.to_thread(ray.get_actor, self._name, NAMESPACE)
            stream: Any = aiter(actor.link.options(num_returns="streaming").remote(name, self._properties))
            first = await _first_item(stream)
        except (RayError, ValueError, TimeoutError, StopAsyncIteration) as error:
            raise OSError(f"the engine {self._name} is not there: {_reason(error)}") from error
        if isinstance(first, str):
            raise OSError(f"the engine {self._name} is not used: {first}")
        return RayTransport(actor, name, stream)


async def _first_item(stream: Any) -> LinkMessages:
    """Return the first item of a stream. One that has none in time is cancelled: an engine that waits for a node would
    begin it some day."""
    try:
        async with asyncio.timeout(OPEN_LIMIT_S):
            first: LinkMessages = await (await anext(stream))
    except TimeoutError:
        ray.cancel(stream)
        raise
    return first


class RayTransport:
    """A link to an engine, while its worker lives. Satisfies `server.backends.transport.Transport`."""

    pid = None  # of another machine

    def __init__(self, actor: Any, name: str, stream: Any) -> None:
        self._actor = actor
        self._name = name
        self._stream = stream
        self._inbox: asyncio.Queue[Sequence[FromWorker]] = asyncio.Queue()
        self._outbox: list[ToWorker] = []
        self._news = asyncio.Event()
        self._ended: str | None = None
        self._tasks = [
            asyncio.create_task(self._receive(), name=f"hear {name}"),
            asyncio.create_task(self._send(), name=f"say {name}"),
        ]

    async def receive(self) -> Sequence[FromWorker]:
        """Wait for the next messages; there are none when the link has ended."""
        return await self._inbox.get()

    def send(self, messages: Sequence[ToWorker]) -> None:
        """Send without waiting, with the next call to the engine."""
        self._outbox += messages
        self._news.set()

    def kill(self) -> None:
        """Kill the worker, and also end the link: an engine that is stuck may not read the message."""
        self._actor.kill.remote(self._name)
        self._end("it was stuck")

    async def end_reason(self) -> str:
        """Return the reason of the link's end, for the log."""
        return self._ended or "the link was closed"

    async def close(self) -> None:
        """End the link, and wait for its tasks."""
        self._actor.unlink.remote(self._name)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end("the link was closed")

    def _end(self, reason: str) -> None:
        if self._ended is None:
            self._ended = reason
            self._inbox.put_nowait(())

    async def _receive(self) -> None:
        try:
            async for reference in self._stream:
                received: LinkMessages = await reference
                if isinstance(received, str):
                    self._end(received)
                    return
                self._inbox.put_nowait(received)
            self._end("its stream has ended")
        except RayError as error:
            self._end(_reason(error))

    async def _send(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ALIVE_EVERY_S):
                    await self._news.wait()
            self._news.clear()
            messages, self._outbox = self._outbox, []
            try:
                packed = await _pack(messages)
                async with asyncio.timeout(LINK_SILENCE_S):
                    linked = await self._actor.send.remote(self._name, packed)
            except (RayError, TimeoutError) as error:
                self._end(_reason(error))
                return
            if not linked:
                self._end("it has given this server up")
                return


async def _pack(messages: Sequence[ToWorker]) -> bytes:
    if not messages:
        return b""
    if any(isinstance(message, Submit) for message in messages):  # pixels may have to be read
        return await asyncio.to_thread(pack, messages)
    return pack(messages)


def pack(messages: Sequence[ToWorker]) -> bytes:
    """Pickle messages, with the pixels of images whose files another machine does not have. Blocks."""
    buffer = io.BytesIO()
    _WithPixels(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(messages)
    return buffer.getvalue()


class _WithPixels(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, RawImageFile):
            return RawImage, (value.width_px, value.height_px, value.mode, value.data)
        return NotImplemented


def _reason(error: BaseException) -> str:
    """Describe an error in one line."""
    if isinstance(error, TimeoutError | GetTimeoutError):
        return "it does not answer"
    return str(error).strip().partition("\n")[0] or type(error).__name__
