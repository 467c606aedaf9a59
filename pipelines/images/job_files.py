"""From pixels to the files of a job, on threads of their own: its last file finishes the job."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from PIL import Image

from pipelines.checkpoints.work.estimate import Speeds
from pipelines.images.scheduling.batching import EngineJob, Row
from pipelines.protocol.finished_image import encode_file
from pipelines.protocol.images import EncodedImage, Encoding, Finished, Preview
from pipelines.protocol.pixels import pixels_digest

if TYPE_CHECKING:  # it imports torch, which plain workers do without
    from pipelines.images.denoising.step_observer import Pixels


class JobFiles:
    """Encodes the engine's images and previews in threads. Its methods are called on the engine's event loop. `jobs`
    are the engine's, by id; `fail` ends one with an error."""

    def __init__(
        self, jobs: Mapping[str, EngineJob], speeds: Speeds, fail: Callable[[EngineJob, BaseException], None]
    ) -> None:
        self._jobs = jobs
        self._speeds = speeds
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="encode")

    def close(self) -> None:
        """End the threads, after the work that waits for them."""
        self._threads.shutdown()

    def encode(self, row: Row, pixels: "Pixels") -> None:
        """Encode an image; the last one of a job finishes it."""
        active = self._jobs.get(row.job.id)
        if active is None or active.done:
            return
        future = self._loop.run_in_executor(
            self._threads, lambda: encode(pixels, row.job.encoding, metadata_of(row), row.seed)
        )
        future.add_done_callback(lambda future: self._on_encoded(active, row, future))

    def encode_preview(self, row: Row, number: int, pixels: "Pixels") -> None:
        """Encode preview `number` of an image, and emit it after those that were drawn before."""
        active = self._jobs.get(row.job.id)
        if active is None or active.done:
            return
        encoding = row.job.encoding
        if pixels.shape[2] == 3:  # alpha comes with the finished image
            encoding = replace(encoding, background="opaque")
        future = self._loop.run_in_executor(self._threads, encode, pixels, encoding, {}, row.seed)
        active.previews.append((row.index, number, future))
        future.add_done_callback(lambda _: self._emit_previews(active))

    def _on_encoded(self, active: EngineJob, row: Row, future: asyncio.Future[EncodedImage]) -> None:
        if active.done:
            return
        if error := future.exception():
            self._fail(active, error)
            return
        active.files[row.index] = future.result()
        active.found |= row.found
        self._finish(active)

    def _emit_previews(self, active: EngineJob) -> None:
        """Emit the previews that are encoded, in the order in which they were drawn: a later one may have taken less
        time."""
        while active.previews and active.previews[0][2].done() and not active.done:
            index, number, future = active.previews.popleft()
            if error := future.exception():
                self._fail(active, error)
            else:
                active.emit(Preview(index, number, future.result()))
        self._finish(active)

    def _finish(self, active: EngineJob) -> None:
        """End a job, once all its images and previews are encoded."""
        if active.done or active.previews or len(active.files) < active.job.n:
            return
        active.done = True
        files = tuple(active.files[index] for index in range(active.job.n))
        unit_s = self._speeds.unit_s(active.job.checkpoint)
        active.emit(Finished(files, active.device_s, unit_s, active.merged, active.found))


def encode(pixels: "Pixels", encoding: Encoding, metadata: Mapping[str, Any], seed: int) -> EncodedImage:
    """Encode an image, with the generation parameters as metadata. Raises NoTransparency."""
    data = encode_file(Image.fromarray(pixels), encoding, {**metadata, "seed": seed})
    height, width = pixels.shape[:2]
    return EncodedImage(data, f"image/{encoding.format}", width, height, seed)


def metadata_of(row: Row) -> dict[str, Any]:
    """Return what an image's file says of it: all that drawing it again takes, and digests of the images that it was
    made from. Blocking: it reads their pixels."""
    job = row.job
    made_from = {
        "made_from": [pixels_digest(each) for each in job.references],
        "mask": None if job.mask is None else pixels_digest(job.mask),
    }
    given = made_from if job.references else {}
    file: dict[str, Any] = {"size": f"{job.width_px}x{job.height_px}"}
    if job.encoding.format != "png":
        file["output_compression"] = job.encoding.quality
    if job.encoding.background != "opaque":
        file["background"] = job.encoding.background
    return {**job.metadata, **file, **given, **row.found, "batch": "merged" if row.turn.merged else "exact"}
