"""The part with which `make gpu` begins, on small networks: what a GPU does without an option, and each left out."""

import json

import pytest
import torch

from benchmarks.gpu.default import DRAWN, LEFT_OUT, Drawn, default
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.report import Report
from pipelines.device.attention_kernels import plain_torch
from pipelines.device.graph_capture import CAPTURES

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("drawn", DRAWN, ids=lambda drawn: drawn.name)
async def test_a_family_by_default_and_with_each_thing_left_out(
    drawn: Drawn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.gpu.default.DRAWN", (drawn,))
    captures = dict(CAPTURES)
    await default(Machine(torch.device("cuda"), tiny=True), Report("default"))
    figures = {figure["what"]: figure for figure in map(json.loads, capsys.readouterr().out.splitlines())}
    assert figures[f"{drawn.name}: by default, p50"]["over_bare"] > 0
    assert figures[f"{drawn.name}: by default, p99"]["calls"] == 4
    for name in ("attention", "graphs"):
        assert figures[f"{drawn.name}: without {name}, p50"]["gain"] > 0
    assert len(figures) == 3 + len(LEFT_OUT)
    assert captures == CAPTURES
    assert torch.nn.functional.scaled_dot_product_attention is plain_torch
