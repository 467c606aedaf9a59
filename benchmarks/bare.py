"""The baseline: a plain diffusers pipeline in this process, with the same weights and threads."""

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.device.offline import quiet_libraries

quiet_libraries()

import diffusers  # noqa: E402
import torch  # noqa: E402

from pipelines.families.registry import family_of  # noqa: E402
from server.catalog.images import ImageModel  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def bare_pipeline(checkpoint: Path) -> Any:
    """As diffusers loads it: bfloat16 on a GPU, float32 on a CPU."""
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    pipeline = diffusers.DiffusionPipeline.from_pretrained(checkpoint, torch_dtype=dtype, safety_checker=None)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(DEVICE)


def draw(pipeline: Any, model: ImageModel, size: tuple[int, int], n: int = 1) -> None:
    """n images in one call, decoded in memory. The prompt is padded to the tokenizer's limit, as the engine does: at
    the pipeline's own default of 512 tokens, a starter's step takes three times as long."""
    call = inspect.signature(pipeline.__call__).parameters
    length = family_of(type(pipeline).__name__).max_sequence_length(call, pipeline)
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in range(n)]
    pipeline(
        prompt=["a red boat at sunset"] * n,
        width=size[0],
        height=size[1],
        num_inference_steps=model.steps,
        guidance_scale=model.checkpoint.sampling.guidance,
        generator=generators,
        **({} if length is None else {"max_sequence_length": length}),
    )


def timed(work: Callable[[], object]) -> float:
    """The seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
