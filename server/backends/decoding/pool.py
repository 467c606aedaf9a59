"""The server's end of the decoders: at most two processes, started when they are needed.

A decoder has one image at a time. It is killed when nobody waits for the image any more, and when it says nothing
for too long; its own limits (server.backends.decoding.worker) end it when an image takes too much of the processor or
of memory. Only that image fails, and the next one gets a new decoder. If the server dies, the kernel kills them.
"""

import asyncio
import re
import secrets
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NoReturn

import structlog

from pipelines.protocol.images import Encoding
from pipelines.protocol.raw_image_file import RawImageFile
from server.backends.decoding.fair_semaphore import FairSemaphore
from server.backends.decoding.messages import MAX_PX, ImageError
from server.backends.decoding.process import Decoder, DecoderDied
from server.errors import StorageFailed

log = structlog.stdlib.get_logger("darkroom.decoding")

MAX_DECODERS = 2
NAME = re.compile(r"[0-9a-f]{32}")  # of a file of decoded pixels
IDLE_S = 60.0  # after which an unused decoder is ended
SILENCE_S = 120.0  # much longer than CPU_LIMIT_S, which is processor time
CRASHES = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL}
TOO_SLOW = "The image takes too long to decode. Save it again as a baseline JPEG or as PNG, or make it smaller."
KillReason = Literal["abandoned", "too_slow", "crashed", "silent", "died"]
KILL_REASONS: tuple[KillReason, ...] = ("abandoned", "too_slow", "crashed", "silent", "died")


class DecoderFailed(Exception):
    """No decoder could be started, or it ended for a reason that is not in the image."""


class DecoderPool:
    """Decodes images. Call `start` before use and `stop` after it, all on one event loop.

    `folder` is its own: pixels wait there until a worker has read them.
    """

    def __init__(self, folder: Path, *, silence_s: float = SILENCE_S, idle_s: float = IDLE_S) -> None:
        self._folder = folder
        self._silence_s = silence_s
        self._idle_s = idle_s
        self._turns = FairSemaphore(MAX_DECODERS)
        self._idle: dict[Decoder, asyncio.TimerHandle] = {}  # with what ends them, the newest last
        self._busy: set[Decoder] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._kills: Counter[str] = Counter()

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the decoders that live."""
        return [decoder.pid for decoder in (*self._idle, *self._busy) if decoder.alive]

    def ended(self, reason: str) -> int:
        """Return how many decoders ended before their image was decoded, for one of KILL_REASONS."""
        return self._kills[reason]

    async def start(self) -> None:
        """Delete the files that a killed server has left in the folder. Raises OSError."""
        await asyncio.to_thread(self._clear_folder)

    async def stop(self) -> None:
        """End the decoders, and the images that they have."""
        while self._idle:
            decoder, timer = self._idle.popitem()
            timer.cancel()
            await _end(decoder)
        await asyncio.gather(*(decoder.kill() for decoder in self._busy), *self._ending)
        with suppress(OSError):  # the next start empties it
            await asyncio.to_thread(self._clear_folder)

    async def decode_image(self, owner: str, data: bytes, max_area_px: int) -> tuple[RawImageFile, tuple[int, int]]:
        """Decode an image to RGB pixels of at most max_area_px, and return its original size, too; both upright.

        Raises ImageError, DecoderFailed, and StorageFailed if the pixels can't be written.

        An `owner` has one image decoded at a time, so that the others are not kept waiting.
        """
        return await self._decode(owner, {"max_area_px": max_area_px}, data, "RGB")

    async def decode_mask(
        self, owner: str, data: bytes, original: tuple[int, int], target: tuple[int, int]
    ) -> RawImageFile:
        """Decode a mask to `L` pixels of the target size, 255 where to paint. `original` is the size that the mask must
        have.

        Raises ImageError, DecoderFailed, StorageFailed.
        """
        mask, _ = await self._decode(owner, {"original": original, "target": target}, data, "L")
        return mask

    async def make_thumbnail(self, owner: str, data: bytes, max_area_px: int) -> bytes:
        """Make a WebP file of at most max_area_px, with its alpha channel and without metadata. Raises ImageError,
        DecoderFailed, StorageFailed."""
        return await self._to_file(owner, {"max_area_px": max_area_px, "as_webp": True}, data)

    async def finish_image(
        self, owner: str, data: bytes, size: tuple[int, int] | None, encoding: Encoding, metadata: Mapping[str, Any]
    ) -> bytes:
        """Turn an image that another server drew into a file of ours: at `size` (width, height in px; None leaves it),
        with our metadata alone. Raises ImageError, also for one of another shape, DecoderFailed, StorageFailed."""
        wanted = {"size": size, "encoding": asdict(encoding), "metadata": dict(metadata)}
        whole = {"max_area_px": MAX_PX, "finish": wanted}  # what is finished is not scaled down first
        return await self._to_file(owner, whole, data)

    async def _to_file(self, owner: str, task: Mapping[str, Any], data: bytes) -> bytes:
        """Return the file that a decoder makes of an image, with its alpha channel."""
        path = self._folder / _new_name()
        try:
            await self._decode_into(path, owner, {**task, "keep_alpha": True}, data)
            return await asyncio.to_thread(path.read_bytes)
        finally:
            path.unlink(missing_ok=True)

    async def _decode(
        self, owner: str, task: Mapping[str, Any], data: bytes, mode: Literal["RGB", "L"]
    ) -> tuple[RawImageFile, tuple[int, int]]:
        path = self._folder / _new_name()
        try:
            answer = await self._decode_into(path, owner, task, data)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        original = (answer["original_width_px"], answer["original_height_px"])
        return RawImageFile.owning(answer["width_px"], answer["height_px"], mode, path), original

    async def _decode_into(self, path: Path, owner: str, task: Mapping[str, Any], data: bytes) -> Mapping[str, Any]:
        """Have the image written to the path. Raises ImageError, DecoderFailed, StorageFailed."""
        answer = await self._take_turn(owner, {**task, "path": str(path), "large": False}, data)
        if answer.get("large"):  # as its header says: nothing is decoded until it may be
            answer = await self._take_turn(owner, {**task, "path": str(path), "large": True}, data)
        if "error" in answer:
            raise ImageError(answer["error"], answer["code"])
        if "failure" in answer:
            log.error("a decoder failed", reason=answer["failure"])
            raise StorageFailed(answer["failure"])
        return answer

    async def _take_turn(self, owner: str, task: Mapping[str, Any], data: bytes) -> Mapping[str, Any]:
        """Ask a decoder once. One that does not answer is dead before the turn ends."""
        async with self._turns.take(owner, large=task["large"]):
            decoder = await self._take_decoder()
            self._busy.add(decoder)
            try:
                async with asyncio.timeout(self._silence_s):
                    answer = await decoder.request(task, data)
            except BaseException as error:
                await _end(decoder)
                self._fail(decoder, error)
            finally:
                self._busy.discard(decoder)
            self._keep(decoder)
            return answer

    async def _take_decoder(self) -> Decoder:
        while self._idle:
            decoder, timer = self._idle.popitem()
            timer.cancel()
            if decoder.alive:
                return decoder
            await _end(decoder)
        try:
            return await Decoder.spawn()
        except OSError as error:  # such as no memory for a process, or no descriptor
            log.exception("no decoder could be started")
            raise DecoderFailed("no decoder could be started") from error

    def _keep(self, decoder: Decoder) -> None:
        def end() -> None:
            del self._idle[decoder]
            self._ending.add(task := asyncio.create_task(_end(decoder)))
            task.add_done_callback(self._ending.discard)

        self._idle[decoder] = asyncio.get_running_loop().call_later(self._idle_s, end)

    def _fail(self, decoder: Decoder, error: BaseException) -> NoReturn:
        """Raise the error for the killed decoder's image."""
        reason: KillReason = "abandoned"
        failure: BaseException = error
        if isinstance(error, TimeoutError):
            reason, failure = "silent", DecoderFailed(f"a decoder said nothing for {self._silence_s:g} s")
        elif isinstance(error, DecoderDied) and error.status == -signal.SIGXCPU:
            reason, failure = "too_slow", ImageError(TOO_SLOW)
        elif isinstance(error, DecoderDied) and error.status in CRASHES:
            reason, failure = "crashed", ImageError("The image can't be decoded: its decoder crashed. Save it again.")
        elif isinstance(error, DecoderDied):
            reason, failure = "died", DecoderFailed(str(error))
        self._kills[reason] += 1
        log.warning("a decoder ended before its image was decoded", reason=reason, pid=decoder.pid)
        raise failure from error.__cause__

    def _clear_folder(self) -> None:
        """Empty the folder of what a server has left there, or create it. The folder itself stays: operators mount one
        in memory there."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._folder.iterdir():
            if NAME.fullmatch(left.name):
                left.unlink()


def _new_name() -> str:
    """Return a new name of a file of decoded pixels."""
    return secrets.token_hex(16)


async def _end(decoder: Decoder) -> None:
    await decoder.kill()
    decoder.close()
