"""The image job of the benchmarks."""

from pipelines.protocol.images import Encoding, ImageJob
from server.catalog.images import ImageModel


def bench_job(model: ImageModel, width_px: int, height_px: int, steps: int | None = None) -> ImageJob:
    return ImageJob(
        id="bench",
        checkpoint=model.checkpoint,
        prompt="a red boat at sunset",
        sampling=model.checkpoint.sampling.resolve(steps or model.steps),
        width_px=width_px,
        height_px=height_px,
        n=1,
        seed=1,
        references=(),
        mask=None,
        encoding=Encoding(),
        metadata={},
        time_limit_s=900,
    )
