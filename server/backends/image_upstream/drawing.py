"""One job at another server: its requests, repeated where that is safe, and its images as files of ours."""

import asyncio
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import structlog

from pipelines.checkpoints.work.estimate import work_units
from pipelines.protocol.images import EncodedImage, Event, Failed, Finished, ImageJob, Preview, Progress, RawImage
from pipelines.protocol.messages import Capabilities
from pipelines.protocol.upstream import ImageUpstream
from server.backends.decoding.messages import ImageError
from server.backends.decoding.pool import DecoderFailed, DecoderPool
from server.backends.image_upstream.answers import UpstreamError
from server.backends.image_upstream.exchange import ExchangeResult, Files, OnBegun, OnPreview, cancel, send
from server.backends.image_upstream.requests import SEED_MODULUS, ImageExchange, exchanges_of
from server.backends.upstream import UpstreamClient
from server.errors import StorageFailed

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {"L": 0, "RGB": 2}
LEVEL = 1  # the file crosses a network once


def to_png(image: RawImage) -> bytes:
    """Encode the pixels as a PNG file. Blocks: for a thread."""
    pixels, row_bytes = memoryview(image.data), image.width_px * len(image.mode)
    rows = b"".join(
        b"\0" + pixels[start : start + row_bytes] for start in range(0, row_bytes * image.height_px, row_bytes)
    )
    header = struct.pack(">IIBBBBB", image.width_px, image.height_px, 8, COLOUR_TYPES[image.mode], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, LEVEL)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


log = structlog.stdlib.get_logger("darkroom.upstream")

RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0)  # a server that restarts is back by then
CANCEL_LIMIT_S = 10.0
PNG_SIZE = slice(16, 24)  # width and height in a PNG's header
Send = Callable[[Event], None]


@dataclass(slots=True)
class _JobProgress:
    """The progress of a job. A stream that is joined again repeats its previews."""

    job: ImageJob
    send: Send
    previews: set[tuple[int, int]] = field(default_factory=set)
    images: int = 0
    found: dict[str, Any] = field(default_factory=dict)  # for the answer's parameters

    def report(self) -> None:
        """Send the progress in steps, of which the other server tells nothing: previews are evenly spread over them."""
        steps, parts = self.job.n * self.job.sampling.steps, self.job.n * (self.job.previews + 1)
        done = self.images * (self.job.previews + 1) + len([each for each in self.previews if each[0] >= self.images])
        self.send(Progress(min(done, parts) * steps // parts, steps))


class UpstreamDrawing:
    """Draws jobs at another server, which each job names."""

    def __init__(self, client: UpstreamClient, decoders: DecoderPool) -> None:
        self._client = client
        self._decoders = decoders
        self._ending: set[asyncio.Task[None]] = set()  # calls that are being cancelled there

    async def settle(self) -> None:
        """Wait until the cancelled calls are also cancelled at their servers."""
        await asyncio.gather(*self._ending)

    async def draw(self, job: ImageJob, upstream: ImageUpstream, capabilities: Capabilities, send: Send) -> Finished:
        """Draw a job's images; previews and progress are sent on the way. Raises UpstreamError, and TimeoutError when
        the job's time is over, which the other server's queue is a part of."""
        began, seen = time.monotonic(), _JobProgress(job, send)
        async with asyncio.timeout(job.time_limit_s):
            files = await asyncio.to_thread(_files, job)
            exchanges = exchanges_of(job, upstream, capabilities)
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._draw(each, files, seen)) for each in exchanges]
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
        drawn = [image for task in tasks for image in task.result()]
        run_s = time.monotonic() - began
        return Finished(tuple(drawn), run_s, run_s / work_units(job), found=seen.found)

    async def _draw(self, exchange: ImageExchange, files: Files, seen: _JobProgress) -> Sequence[EncodedImage]:
        job, images = seen.job, []
        size = (job.width_px, job.height_px)
        answered = await self._send(exchange, files, seen)
        seen.found |= answered.found
        for i, data in enumerate(answered.images):
            seed = (job.seed + exchange.first + i) % SEED_MODULUS
            content = await self._convert(job, exchange.upstream, data, size, seed)
            images.append(EncodedImage(content, f"image/{job.encoding.format}", *size, seed))
            seen.images += 1
            seen.report()
        return images

    async def _send(self, exchange: ImageExchange, files: Files, seen: _JobProgress) -> ExchangeResult:
        """Send a request until it is answered. Another Darkroom finds the call that it began by its Idempotency-Key, so
        a connection that breaks costs no image, and draws none twice. Others are asked once."""

        async def show(index: int, number: int, data: bytes) -> None:
            await self._preview(seen, exchange.upstream, exchange.first + index, number, data)

        jobs: list[str] = []  # its id there, as soon as it is known
        try:
            return await self._attempts(exchange, files, seen.job.id, show, jobs.append)
        except asyncio.CancelledError:
            if exchange.upstream.api == "darkroom":
                self._ending.add(task := asyncio.create_task(self._cancel(exchange, files, jobs)))
                task.add_done_callback(self._ending.discard)
            raise

    async def _attempts(
        self, exchange: ImageExchange, files: Files, job_id: str, on_preview: OnPreview, on_begun: OnBegun
    ) -> ExchangeResult:
        began, upstream = False, exchange.upstream
        for delay_s in (*RETRY_DELAYS_S, None):
            try:
                return await send(self._client, exchange, files, on_preview, on_begun)
            except UpstreamError as error:
                began = began or error.cut
                again = upstream.api == "darkroom" and began and (error.cut or error.away)
                if delay_s is None or not again:
                    raise
                log.warning("an upstream broke off", model=upstream.model, job=job_id, detail=error.failed.detail)
                await asyncio.sleep(delay_s)
        raise RuntimeError("the last attempt returns or raises")

    async def _cancel(self, exchange: ImageExchange, files: Files, jobs: Sequence[str]) -> None:
        """Cancel a call at the other server. A call that can't be cancelled there ends by itself, and costs this
        server's key its price there."""
        try:
            async with asyncio.timeout(CANCEL_LIMIT_S):
                await cancel(self._client, exchange, files, jobs[-1] if jobs else None)
        except (TimeoutError, httpx.HTTPError) as error:
            model = exchange.upstream.model
            log.warning("a call could not be cancelled at an upstream", model=model, error=str(error))

    async def _preview(self, seen: _JobProgress, upstream: ImageUpstream, index: int, number: int, data: bytes) -> None:
        job = seen.job
        if (index, number) in seen.previews or not 0 <= index < job.n:
            return
        seen.previews.add((index, number))
        seed = (job.seed + index) % SEED_MODULUS
        content = await self._convert(job, upstream, data, None, seed)
        width, height = struct.unpack(">II", data[PNG_SIZE])
        image = EncodedImage(content, f"image/{job.encoding.format}", width, height, seed)
        seen.send(Preview(index, number, image))
        seen.report()

    async def _convert(
        self, job: ImageJob, upstream: ImageUpstream, data: bytes, size: tuple[int, int] | None, seed: int
    ) -> bytes:
        """Turn an image into a file of ours, in the job's format. Raises UpstreamError."""
        who = f"The server behind model `{upstream.model}`"
        try:
            return await self._decoders.finish_image(
                job.owner, data, size, job.encoding, {**job.metadata, "seed": seed}
            )
        except ImageError as error:
            message = f"{who} sent an image that can't be used: {error} Nothing was charged."
            raise UpstreamError(Failed("upstream_failed", message, upstream.base_url)) from error
        except DecoderFailed as error:
            message = f"An image of {who[0].lower()}{who[1:]} could not be read; nothing was charged."
            raise UpstreamError(Failed("engine_failed", message, str(error))) from error
        except StorageFailed as error:
            raise UpstreamError(Failed("upstream_busy", error.message, error.reason, retry_after_s=30)) from error


def _files(job: ImageJob) -> Files:
    """Encode the job's references and mask as PNG. Blocks."""
    return Files(tuple(to_png(each) for each in job.references), to_png(job.mask) if job.mask is not None else None)
