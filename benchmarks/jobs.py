"""The image job of the benchmarks, on the starters of the catalog."""

from pipelines.catalog.images import load_catalog
from pipelines.protocol.images import Encoding, ImageJob
from server.settings import Settings


def bench_job(model_name: str, width_px: int, height_px: int, steps: int | None = None) -> ImageJob:
    settings = Settings()
    model = load_catalog(settings.model_configs, settings.weights).models[model_name]
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
