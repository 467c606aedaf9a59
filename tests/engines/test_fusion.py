"""Passes whose small operations are fused: the same bits, whatever the family, and unfused where that can't be.

Triton's interpreter computes the kernels here; tests/unit/engine/test_fused_kernels.py compiles them.
"""

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton", reason="there is no Triton for this platform")

from pipelines.device.fusion import kernels
from pipelines.device.fusion.fuser import FUSERS, Fuser
from pipelines.device.fusion.planning import Fused, plan
from pipelines.device.fusion.program import Program, same_bits
from pipelines.device.fusion.recording import Record, record
from pipelines.device.fusion.simplifying import simplified
from pipelines.device.graph_capture import CAPTURES
from pipelines.images.denoising import pass_graphs
from pipelines.images.denoising.pass_graphs import PassGraphs
from tests.engines.device import of_a_cpu
from tests.support.interpreted_kernels import InterpretingFuser, interpreted
from tests.support.recorded_steps import Captures
from tests.support.tiny_families import FAMILIES

pytestmark = of_a_cpu
CPU = torch.device("cpu")
FUSED = {  # least kernels of a pass of a tiny checkpoint
    "flux": 15, "klein": 15, "sd3": 15, "z-image": 40, "qwen-image": 30, "chroma": 15, "sdxl": 5,
}  # fmt: skip


@pytest.fixture(autouse=True)
def inference(monkeypatch: pytest.MonkeyPatch) -> Any:
    interpreted(monkeypatch)
    with torch.inference_mode():
        yield


class Called(Exception):
    """The denoiser has been called."""


def first_pass(pipeline: Any) -> Callable[[], Any]:
    """The first call of a pipeline's denoiser, to be repeated."""
    denoiser = getattr(pipeline, "transformer", None) or pipeline.unet
    forward, calls = denoiser.forward, []

    def noted(*args: Any, **kwargs: Any) -> None:
        calls.append((args, kwargs))
        raise Called

    denoiser.forward = noted
    pipeline.set_progress_bar_config(disable=True)
    with pytest.raises(Called):
        pipeline(prompt="a red boat", num_inference_steps=2, height=64, width=64)
    denoiser.forward = forward
    args, kwargs = calls[0]
    return lambda: forward(*args, **kwargs)


def program_of(run: Callable[[], Any]) -> tuple[list[Any], Program]:
    """The outputs of a run, and its program."""
    output, made = record(run)
    assert isinstance(made, Record), made
    return tree_leaves(output), Program(made, plan(made, CPU, ()), CPU)


def assert_same_bits(run: Callable[[], Any], least: int = 1) -> None:
    expected, program = program_of(run)
    assert len(program.fused) >= least
    assert program.differing(set()) == set()
    assert all(map(same_bits, expected, tree_leaves(program.run())))


@pytest.mark.daily("flux-dtype0", "sd3-dtype1")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", FUSED)
def test_a_pass_has_the_same_bits(name: str, dtype: torch.dtype) -> None:
    pipeline = FAMILIES[name]().to(dtype)
    assert_same_bits(first_pass(pipeline), FUSED[name])


VALUES = [0.0, -0.0, math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-40, 1.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [1, 3, 77, 130])
def test_odd_sizes_and_what_is_no_number(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    values, other = torch.randn(2, 5, width).to(dtype), torch.randn(2, 7, width).to(dtype)
    values.view(-1)[: len(VALUES)] = torch.tensor(VALUES)[: values.numel()].to(dtype)
    gate, strided = torch.randn(2, width).to(dtype), torch.randn(width, 5, 2).to(dtype).permute(2, 1, 0)

    def run() -> list[torch.Tensor]:
        joined = torch.cat([values * (1 + gate[:, None]) - strided, -other], dim=1)
        turned = joined.transpose(0, 1) * 0.3
        halves = torch.stack([turned[:, :, ::2], turned[:, :, ::2] ** 2], dim=-1).flatten(2)
        return [halves.float() * 3 - 1, (joined[:, 2:9].float() * gate[:, None]).to(dtype) + 1]

    assert_same_bits(run, 2)


def test_what_is_changed_in_place_is_read_before() -> None:
    values = torch.randn(3, 64)

    def run() -> tuple[torch.Tensor, ...]:
        copied = values * 2
        read = copied + 1
        copied.mul_(3)
        return (read * 2 + copied, copied)

    expected, program = program_of(run)
    assert all(map(same_bits, expected, program.run()))


@pytest.mark.parametrize("kind", ["host", "unwritten", "given", "sized"])
def test_what_no_record_repeats_is_not_recorded(kind: str) -> None:
    values = torch.ones(3, 64)

    def run() -> torch.Tensor:
        match kind:
            case "host":
                return values * float(values.sum())
            case "unwritten":
                made = torch.empty(3, 64)
                made.numpy()[:] = 2  # as a kernel outside of torch
                return made * 2
            case "given":
                return values.add_(1) * 2
            case _:
                return values.flatten()[values.flatten().nonzero()] * 2

    _, made = record(run)
    assert isinstance(made, str)


def test_a_kernel_with_other_bits_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    values, gate = torch.randn(3, 64), torch.randn(64)

    def run() -> tuple[torch.Tensor, ...]:
        return values * gate + 1, (values - gate) * 2

    launch = kernels.launch

    def wrong(source: Any, tensors: Any, result: torch.Tensor) -> None:
        launch(source, tensors, result)
        if " - " in source.text:
            result += 1e-6

    monkeypatch.setattr(kernels, "launch", wrong)
    expected, program = program_of(run)
    (differing,) = program.differing(set())
    assert " - " in differing
    _, made = record(run)
    assert isinstance(made, Record)
    again = Program(made, plan(made, CPU, {differing}), CPU)
    assert len(again.fused) == 1
    assert all(map(same_bits, expected, again.run()))


def test_roots_with_other_bits_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kernels compute the same one, and go on without it."""
    values, gate = torch.randn(2, 5, 64), torch.randn(64)

    def run() -> list[torch.Tensor]:
        scale = torch.rsqrt((values * 2).mean(-1, keepdim=True) ** 2 + 1e-6)
        return [(values + gate) * scale, (values - gate) * scale]

    assert_same_bits(run, 2)
    launch = kernels.launch

    def wrong(source: Any, tensors: Any, result: torch.Tensor) -> None:
        launch(source, tensors, result)
        if "rsqrt" in source.text:
            result += 1e-6

    monkeypatch.setattr(kernels, "launch", wrong)
    expected, program = program_of(run)
    differing = program.differing(set())
    assert len(differing) == 2
    _, made = record(run)
    assert isinstance(made, Record)
    again = Program(made, plan(made, CPU, differing), CPU)
    assert len(again.fused) >= 2
    assert not any("rsqrt" in step.source.text for step in again.fused)
    assert all(map(same_bits, expected, again.run()))


def test_what_is_there_already_is_not_computed_again() -> None:
    values, embedding = torch.randn(2, 9, 64), torch.randn(2, 64)
    silu = torch.nn.functional.silu

    def run() -> list[torch.Tensor]:
        first = silu(values) + silu(embedding)[:, None]
        divided = first[:, :4], first[:, 4:]
        other = torch.cat([divided[1], divided[0]], dim=1)
        return [silu(torch.cat(divided, dim=1)) + silu(embedding)[:, None], other, torch.rand(3), torch.rand(3)]

    torch.manual_seed(1)
    output, made = record(run)
    assert isinstance(made, Record)
    kept = [each.name for each in simplified(made).operations]
    assert (kept.count("silu"), kept.count("cat"), kept.count("rand")) == (3, 1, 2)
    torch.manual_seed(1)
    assert all(map(same_bits, output, Program(made, plan(made, CPU, ()), CPU).run()))


def test_memory_is_given_back_as_it_is_by_torch() -> None:
    """No result lives longer than its last reader."""
    values = torch.randn(3, 64)

    def run() -> torch.Tensor:
        made = values
        for _ in range(6):
            made = torch.nn.functional.layer_norm(made * 2 + 1, (64,))
        return made

    _, program = program_of(run)
    ended = [storage for _, storages in program._steps for storage in storages]
    assert len(ended) == len(set(ended)) == len(program._steps) - 1
    assert sum(isinstance(step, Fused) for step, _ in program._steps) == 6


class Gated:
    """A denoiser of a gated residual."""

    def __init__(self) -> None:
        self.gate = torch.full((64,), 0.3)
        self.calls = 0

    def forward(self, latents: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor]:
        self.calls += 1
        return (latents + self.gate * latents * step,)


def arguments(step: float, rows: int = 2) -> dict[str, torch.Tensor]:
    return {"latents": torch.full((rows, 3, 64), 0.7), "step": torch.tensor(step)}


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    made = Captures()
    monkeypatch.setitem(CAPTURES, "cpu", lambda: made)
    monkeypatch.setitem(FUSERS, "cpu", InterpretingFuser)
    monkeypatch.setattr(pass_graphs, "CAPTURED_AT", 2)
    return made


def compute(graphs: PassGraphs, gated: Gated, step: float, rows: int = 2) -> None:
    """Compute a pass, once no kernels are being compiled."""
    for due in graphs._due.values():
        if due.fusion is not None:
            due.fusion._build.join(60)
    expected = gated.forward(**arguments(step, rows))
    assert same_bits(graphs.compute(gated.forward, arguments(step, rows))[0], expected[0])


def test_a_form_that_comes_again_is_captured_fused(captures: Captures) -> None:
    graphs, gated = PassGraphs(CPU), Gated()
    for step in (1.0, 2.0, 3.0, 4.0, math.nan, 5.0):
        compute(graphs, gated, step)
    (captured,) = graphs._passes.values()
    assert captured._program is not None
    assert len(captured._program.fused) == 1
    assert captures.made == 1
    assert not graphs._due
    gated.gate *= 2
    graphs.require("other adapters")
    for step in (1.0, 2.0, 3.0, 4.0):
        compute(graphs, gated, step)
    assert captures.made == 2


def test_passes_are_launched_while_kernels_are_compiled(captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = threading.Event()
    monkeypatch.setattr(kernels, "build", lambda *_: compiled.wait(60))
    graphs, gated = PassGraphs(CPU), Gated()
    for step in (1.0, 2.0, 3.0, 4.0):
        graphs.compute(gated.forward, arguments(step))
    assert (gated.calls, captures.made) == (4, 0)
    compiled.set()
    compute(graphs, gated, 5.0)
    assert captures.made == 1


def broken(*_: Any) -> None:
    raise RuntimeError("Failed to find C compiler.\nPlease specify one")


def wrong(source: Any, tensors: Any, result: torch.Tensor) -> None:
    result.fill_(1.0)


@pytest.mark.parametrize(
    ("function", "replaced", "why"),
    [("build", broken, "Failed to find C compiler"), ("launch", broken, "Failed to find"), ("launch", wrong, "")],
)
def test_what_can_not_be_fused_is_captured_as_it_is(
    captures: Captures, monkeypatch: pytest.MonkeyPatch, capsys: Any, function: str, replaced: Any, why: str
) -> None:
    monkeypatch.setattr(kernels, function, replaced)
    graphs, gated = PassGraphs(CPU), Gated()
    for rows in (1, 2):
        for step in (1.0, 2.0, 3.0, 4.0):
            compute(graphs, gated, step, rows)
    assert graphs.refused is None
    assert len(graphs._passes) == 2
    assert all(captured._program is None for captured in graphs._passes.values())
    assert capsys.readouterr().err.count("not fused") == (1 if why else 0)
    assert graphs._fuser is not None
    assert why in (graphs._fuser.refused or "")


def test_interpreted_kernels_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Fuser(CPU).refused == "TRITON_INTERPRET is set"
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert Fuser(CPU).refused is None


def test_a_pass_that_no_record_repeats_is_captured_as_it_is(captures: Captures) -> None:
    graphs = PassGraphs(CPU)

    def forward(latents: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return latents * step if torch.equal(latents, latents) else latents

    for step in (1.0, 2.0, 3.0):
        assert graphs.compute(forward, arguments(step))[0, 0, 0].item() == pytest.approx(0.7 * step)
    assert [captured._program for captured in graphs._passes.values()] == [None]


def test_a_pass_that_is_recorded_without_memory_is_computed_again(captures: Captures) -> None:
    graphs, gated = PassGraphs(CPU), Gated()
    for step in (1.0, 2.0, 3.0):
        compute(graphs, gated, step)
    assert graphs._passes
    full = [torch.OutOfMemoryError("CUDA out of memory")]

    def runs_out(latents: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor]:
        if gated.calls > 7 and full:
            raise full.pop()
        return gated.forward(latents, step)

    for step in (1.0, 2.0, 3.0):
        graphs.compute(runs_out, arguments(step, rows=4))
    assert not full
