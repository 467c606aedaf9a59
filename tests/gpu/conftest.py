"""Tests that need a GPU. `pytest tests/gpu` on a machine with one takes some minutes; without one tests/simulated_gpu
runs them."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipelines.device.offline import quiet_libraries

quiet_libraries()

import torch  # noqa: E402
from PIL import Image  # noqa: E402

from pipelines.images.engine import ImageEngine  # noqa: E402
from pipelines.images.loading import fp8  # noqa: E402
from pipelines.protocol.images import CheckpointSpec, Event, Finished, ImageJob  # noqa: E402
from tests.engines.test_families import family_spec  # noqa: E402
from tests.support.tiny_families import make_family  # noqa: E402

HERE = Path(__file__).parent
INTERPRETED_ROWS = 32  # of a call; each takes Triton's interpreter milliseconds, and a call with a prompt has hundreds


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="there is no GPU here; see tests/simulated_gpu"))


@pytest.fixture(scope="session")
def flux(tmp_path_factory: pytest.TempPathFactory) -> CheckpointSpec:
    """A small FLUX.1 of random weights."""
    folder = tmp_path_factory.mktemp("flux")
    make_family("flux", folder / "flux")
    return family_spec("flux", folder, "img2img")


@pytest.fixture
def few_interpreted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantize large calls to float8 by torch's operations where Triton's kernels are interpreted."""
    if "TRITON_INTERPRET" not in os.environ:
        return
    by_kernel, note = fp8._quantizer("cuda")
    assert not note

    def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (by_kernel if len(rows) <= INTERPRETED_ROWS else fp8._quantize)(rows)

    monkeypatch.setattr(fp8, "_quantizer", lambda kind: (quantize, ""))


async def draw(
    engine: ImageEngine, job: ImageJob, on_event: Callable[[Event], None] = lambda _: None
) -> list[np.ndarray]:
    """Its images; the job must not fail."""
    last: Event | None = None
    async for event in engine.submit(job):
        on_event(event)
        last = event
    assert isinstance(last, Finished), last
    return [np.asarray(Image.open(io.BytesIO(image.data))) for image in last.images]
