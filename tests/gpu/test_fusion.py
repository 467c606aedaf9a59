"""Small operations that are fused to kernels, in the graphs of a checkpoint that draws."""

import os

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="there is no Triton for this platform")

from pipelines.device.fusion import kernels
from pipelines.device.fusion.fuser import FUSERS
from pipelines.images.denoising import pass_graphs
from pipelines.images.denoising.pass_graphs import PassGraphs
from pipelines.images.engine import ImageEngine
from pipelines.protocol.images import CheckpointSpec
from tests.gpu.conftest import draw
from tests.support.image_jobs import image_job
from tests.support.interpreted_kernels import InterpretingFuser

GPU = torch.device("cuda")


async def test_fused_passes_are_captured_and_draw_the_same_bits(
    flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "TRITON_INTERPRET" in os.environ:
        monkeypatch.setitem(FUSERS, "cuda", InterpretingFuser)
        monkeypatch.setattr(kernels, "TILE", 2**16)
        monkeypatch.setattr(kernels, "WIDEST", 2**12)
    monkeypatch.setattr(pass_graphs, "CAPTURED_AT", 1)
    recorded = PassGraphs.compute

    def compute(graphs: PassGraphs, *given: object) -> object:
        """Wait for the kernels of the pass before."""
        for due in graphs._due.values():
            if due.fusion is not None:
                due.fusion._build.join()
        return recorded(graphs, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(PassGraphs, "compute", compute)
    jobs = image_job(flux, steps=3), image_job(flux, steps=2, seed=11, prompt="a cat")
    engine = ImageEngine(GPU)
    images = [(await draw(engine, each))[0] for each in jobs]
    checkpoint = await engine.load(flux)
    assert checkpoint.merger is not None
    graphs = checkpoint.merger.graphs
    assert graphs is not None
    assert graphs.refused is None
    assert graphs._fuser is not None
    assert graphs._fuser.refused is None
    assert not graphs._fuser.differing
    assert graphs._passes
    assert all(each._program is not None and each._program.fused for each in graphs._passes.values())
    monkeypatch.delitem(FUSERS, "cuda")
    plain = ImageEngine(GPU)
    again = [(await draw(plain, each))[0] for each in jobs]
    assert all(map(np.array_equal, images, again))
