"""Passes of a denoiser that a graph repeats: the same bits, whatever takes turns, changes, moves or fails meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.hooks import apply_layerwise_casting

from pipelines.device.graph_capture import CAPTURES
from pipelines.images.denoising import pass_graphs
from pipelines.images.denoising.pass_graphs import PassGraphs
from pipelines.images.engine import ImageEngine
from pipelines.protocol.images import CheckpointSpec, Finished, ImageJob, Runtime
from tests.engines.conftest import left_half, plain_image
from tests.engines.device import DEVICE
from tests.engines.shared_passes import difference, drawn, drawn_together
from tests.support.recorded_steps import Captures

Job = Callable[..., ImageJob]
Spec = Callable[[str], CheckpointSpec]


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    made = Captures()
    monkeypatch.setitem(CAPTURES, DEVICE.type, lambda: made)
    monkeypatch.setattr(pass_graphs, "CAPTURED_AT", 2)
    return made


async def without_graphs(monkeypatch: pytest.MonkeyPatch, jobs: list[ImageJob]) -> list[np.ndarray]:
    with monkeypatch.context() as patch:
        patch.delitem(CAPTURES, DEVICE.type)
        engine = ImageEngine(DEVICE)
        return [image for each in jobs for image in await drawn(engine, each)]


STARTS: dict[str, dict[str, object]] = {
    "text": {},
    "reference": {"references": (plain_image(),), "strength": 0.9},
    "mask": {"references": (plain_image(),), "mask": left_half(), "strength": 0.9},
}


@pytest.mark.daily("sd-text", "klein-reference")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", ["sd", "sd3", "klein"])
async def test_a_graph_draws_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, captures: Captures, job: Job, name: str, start: str
) -> None:
    jobs = [
        job(name, id="first", steps=5, **STARTS[start]),
        job(name, id="other", steps=4, seed=9, prompt="another prompt", **STARTS[start]),
    ]
    expected = await without_graphs(monkeypatch, jobs)
    engine = ImageEngine(DEVICE)
    images = [image for each in jobs for image in await drawn(engine, each)]
    assert captures.repeated > captures.made > 0
    assert all(np.array_equal(*pair) for pair in zip(images, expected, strict=True))


async def test_images_that_share_passes_share_graphs(
    monkeypatch: pytest.MonkeyPatch, captures: Captures, job: Job
) -> None:
    jobs = [job("sd", id=str(seed), seed=seed, steps=5) for seed in range(3)]
    expected = await without_graphs(monkeypatch, jobs)
    events = await drawn_together(ImageEngine(DEVICE), jobs)
    assert all(difference(event, [image]) <= 2 for event, image in zip(events, expected, strict=True))
    assert all(isinstance(event, Finished) and event.merged for event in events)
    assert captures.repeated > captures.made > 0


async def test_a_form_that_has_not_come_often_is_launched(monkeypatch: pytest.MonkeyPatch, job: Job) -> None:
    made = Captures()
    monkeypatch.setitem(CAPTURES, DEVICE.type, lambda: made)
    engine = ImageEngine(DEVICE)
    await drawn(engine, job("sd", steps=pass_graphs.CAPTURED_AT - 1))
    assert made.made == 0
    await drawn(engine, job("sd", id="again", steps=4))
    assert made.made == 1


async def test_other_adapters_have_other_graphs(
    monkeypatch: pytest.MonkeyPatch, captures: Captures, job: Job, spec: Spec, adapter: Path
) -> None:
    adapted = replace(spec("sd"), runtime=Runtime(lora_folder=adapter.parent))
    plain = job("sd", id="plain", steps=4, checkpoint=adapted)
    jobs = [
        replace(plain, id=str(number), sampling=replace(plain.sampling, loras=loras))
        for number, loras in enumerate(
            [(), ((adapter.stem, 1.0),), ((adapter.stem, 0.25),), (), ((adapter.stem, 1.0),)]
        )
    ]
    expected = await without_graphs(monkeypatch, jobs)
    engine = ImageEngine(DEVICE)
    images = [image for each in jobs for image in await drawn(engine, each)]
    assert captures.repeated > 0
    assert all(np.array_equal(*pair) for pair in zip(images, expected, strict=True))
    assert not np.array_equal(images[0], images[1])
    assert not np.array_equal(images[1], images[2])


async def test_memory_that_is_asked_for_is_given_back(captures: Captures, job: Job) -> None:
    engine = ImageEngine(DEVICE)
    (first,) = await drawn(engine, job("sd", steps=4))
    graphs = graphs_of(engine)
    assert graphs._passes
    await engine.sleep()
    assert not graphs._passes
    (again,) = await drawn(engine, job("sd", id="again", steps=4))
    assert np.array_equal(first, again)


@pytest.mark.parametrize("offload", ["model", "group"])
async def test_weights_that_come_and_go_are_not_captured(
    captures: Captures, job: Job, spec: Spec, offload: str
) -> None:
    if DEVICE.type == "cpu":
        pytest.skip("a CPU offloads nothing")
    moving = replace(spec("sd"), runtime=Runtime(offload=offload))  # type: ignore[arg-type]
    await drawn(ImageEngine(DEVICE), job("sd", steps=4, checkpoint=moving))
    assert captures.made == 0


async def test_weights_that_are_cast_for_each_pass_are_not_even_tried(captures: Captures, job: Job, spec: Spec) -> None:
    """The try would leave them in the memory of the stream that it captures on."""
    stored = replace(spec("sd"), runtime=Runtime(quantize="float8"))
    engine = ImageEngine(DEVICE)
    await drawn(engine, job("sd", steps=4, checkpoint=stored))
    (loaded,) = engine._cache._loaded.values()
    assert loaded.checkpoint.merger is not None
    assert (loaded.checkpoint.merger.graphs, captures.made) == (None, 0)


def graphs_of(engine: ImageEngine) -> PassGraphs:
    (loaded,) = engine._cache._loaded.values()
    assert loaded.checkpoint.merger is not None
    assert loaded.checkpoint.merger.graphs is not None
    return loaded.checkpoint.merger.graphs


class Scaled:
    """A denoiser of one product, whose table a library might drop."""

    def __init__(self) -> None:
        self.table = torch.arange(4.0)
        self.calls = 0

    def forward(self, latents: torch.Tensor, step: torch.Tensor, factor: float = 1.0) -> tuple[torch.Tensor]:
        self.calls += 1
        return (latents * self.table * step * factor,)


@pytest.fixture
def graphs(captures: Captures) -> PassGraphs:
    return PassGraphs(DEVICE)


def arguments(step: float, factor: float = 1.0, rows: int = 1) -> dict[str, object]:
    return {"latents": torch.ones(rows, 4, device=DEVICE), "step": torch.tensor(step, device=DEVICE), "factor": factor}


@pytest.fixture
def scaled() -> Scaled:
    made = Scaled()
    made.table = made.table.to(DEVICE)
    return made


def test_each_output_has_memory_of_its_own(graphs: PassGraphs, scaled: Scaled) -> None:
    outputs = [graphs.compute(scaled.forward, arguments(step))[0] for step in (1.0, 2.0, 3.0, 4.0)]
    assert [each[0, 3].item() for each in outputs] == [3.0, 6.0, 9.0, 12.0]
    assert scaled.calls == 3  # one launched, one warmed up and one captured


def test_plain_values_and_rows_have_graphs_of_their_own(graphs: PassGraphs, scaled: Scaled) -> None:
    for factor, rows in [(1.0, 1), (2.0, 1), (1.0, 2)]:
        for step in (1.0, 2.0, 3.0):
            (output,) = graphs.compute(scaled.forward, arguments(step, factor, rows))
            assert output.shape == (rows, 4)
            assert output[0, 3].item() == 3 * step * factor
    assert len(graphs._passes) == 3


def test_what_a_pass_reads_stays_for_its_graph(graphs: PassGraphs, scaled: Scaled) -> None:
    for step in (1.0, 2.0):
        graphs.compute(scaled.forward, arguments(step))
    scaled.table = torch.full((4,), float("nan"), device=DEVICE)  # the library has made another one
    (captured,) = graphs._passes.values()
    assert any(torch.equal(each, torch.arange(4.0, device=DEVICE)) for each in captured._read)


def test_what_the_first_run_puts_into_a_cache_stays_for_its_graph(graphs: PassGraphs) -> None:
    kept: dict[int, torch.Tensor] = {}  # of one size alone, as a full cache of position tables

    def cached(latents: torch.Tensor, **_: object) -> torch.Tensor:
        rows = latents.shape[0]
        if rows not in kept:
            kept.clear()
            kept[rows] = torch.full((rows, 4), 5.0, device=DEVICE)
        return latents * kept[rows]

    for rows in (1, 2, 1):
        graphs.compute(cached, arguments(1.0, rows=rows))
    (captured,) = graphs._passes.values()
    assert any(each is kept[1] for each in captured._read)


def test_weights_that_a_pass_casts_in_place_are_not_captured(graphs: PassGraphs, captures: Captures) -> None:
    """A graph would read the memory that they had before, which has been freed."""
    layer = torch.nn.Linear(4, 4).to(DEVICE, torch.bfloat16)
    apply_layerwise_casting(layer, storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.bfloat16)
    latents = torch.ones(1, 4, device=DEVICE, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = layer(latents)
        for _ in range(3):
            assert torch.equal(graphs.compute(layer.forward, {"input": latents}), expected)
    assert captures.made == 0
    assert graphs.refused == "a pass moves its weights"


@pytest.mark.parametrize("case", ["slice", "expanded"])
def test_inputs_keep_their_strides(graphs: PassGraphs, case: str) -> None:
    """In bfloat16 a layer adds its bias in another way to rows that do not lie side by side."""
    layer = torch.nn.Linear(64, 64).to(DEVICE, torch.bfloat16)
    random = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for _ in range(4):
            values = torch.randn(2, 20, 64, generator=random).to(DEVICE, torch.bfloat16)
            given = values[:, :7] if case == "slice" else values[:1, :7].expand(2, -1, -1)
            assert torch.equal(graphs.compute(layer.forward, {"input": given}), layer(given))
    assert graphs._passes


def test_tensors_of_the_host_and_objects_are_not_captured(
    graphs: PassGraphs, scaled: Scaled, captures: Captures
) -> None:
    odd = [object(), {"a": object()}] + ([torch.ones(1)] if DEVICE.type != "cpu" else [])
    for value in odd:
        for _ in range(3):
            graphs.compute(
                lambda latents, step, factor, extra: scaled.forward(latents, step), arguments(1.0) | {"extra": value}
            )
    assert captures.made == 0


def test_a_pass_that_the_host_reads_is_launched_from_then_on(
    graphs: PassGraphs, capsys: pytest.CaptureFixture[str]
) -> None:
    def reads(latents: torch.Tensor, step: torch.Tensor, factor: float) -> torch.Tensor:
        return latents * step.item()

    for step in (1.0, 2.0, 3.0):
        output = graphs.compute(reads, arguments(step))
        assert output[0, 0].item() == step
    assert graphs.refused is not None
    assert "launched kernel by kernel" in capsys.readouterr().err


def test_what_repeats_other_bits_is_refused(graphs: PassGraphs) -> None:
    calls: list[int] = []

    def counts(latents: torch.Tensor, step: torch.Tensor, factor: float) -> torch.Tensor:
        calls.append(1)
        return latents * len(calls)

    for _ in range(4):
        graphs.compute(counts, arguments(1.0))
    assert graphs.refused == "what a graph repeats has other bits"


def test_what_is_no_number_has_its_graph(graphs: PassGraphs, scaled: Scaled) -> None:
    for _ in range(3):
        (output,) = graphs.compute(scaled.forward, arguments(float("nan")))
        assert output.isnan().all()
    assert graphs.refused is None
    (output,) = graphs.compute(scaled.forward, arguments(2.0))
    assert output[0, 3].item() == 6.0


def test_a_pass_without_memory_is_computed_once_graphs_are_dropped(graphs: PassGraphs, scaled: Scaled) -> None:
    for _ in range(3):
        graphs.compute(scaled.forward, arguments(1.0))
    assert graphs._passes
    tries: list[int] = []

    def full(latents: torch.Tensor, step: torch.Tensor, factor: float) -> torch.Tensor:
        tries.append(1)
        if len(tries) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return latents

    graphs.compute(full, arguments(1.0, rows=2))
    assert len(tries) == 2
    assert not graphs._passes
    for _ in range(5):
        graphs.compute(scaled.forward, arguments(1.0))
    assert not graphs._passes  # not at once again
    with pytest.raises(torch.OutOfMemoryError):
        graphs.compute(lambda **_: full_always(), arguments(1.0, rows=3))


def full_always() -> torch.Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory")


def popped(latents: torch.Tensor, residuals: list[torch.Tensor]) -> torch.Tensor:
    """Take the residuals as a UNet takes those of T2I-Adapters: off the list."""
    while residuals:
        latents = latents + residuals.pop(0)
    return latents


def residuals(value: float) -> dict[str, object]:
    return {"latents": torch.ones(1, 4, device=DEVICE), "residuals": [torch.full((1, 4), value, device=DEVICE)] * 2}


def test_a_pass_that_empties_its_lists_is_captured(graphs: PassGraphs) -> None:
    for value in (1.0, 2.0, 3.0, 4.0):
        assert graphs.compute(popped, residuals(value))[0, 0].item() == 1 + 2 * value
    assert graphs.refused is None
    assert graphs._passes


def test_a_pass_that_is_computed_again_has_its_lists_again(graphs: PassGraphs, scaled: Scaled) -> None:
    for _ in range(3):
        graphs.compute(scaled.forward, arguments(1.0))
    full: list[Exception] = [torch.OutOfMemoryError("CUDA out of memory")]

    def runs_out(**given: Any) -> torch.Tensor:
        output = popped(**given)
        if full:
            raise full.pop()
        return output

    assert graphs.compute(runs_out, residuals(3.0))[0, 0].item() == 7.0


def test_few_graphs_are_kept(graphs: PassGraphs, scaled: Scaled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_graphs, "MOST_GRAPHS", 2)
    monkeypatch.setattr(pass_graphs, "MOST_FORMS", 3)
    for rows in (1, 2, 3):
        for _ in range(3):
            graphs.compute(scaled.forward, arguments(1.0, rows=rows))
    assert len(graphs._passes) == 1  # one that is dropped alone takes cuBLAS's memory from the others
    for rows in range(4, 10):
        graphs.compute(scaled.forward, arguments(1.0, rows=rows))
    assert len(graphs._asked) <= 4


def test_another_state_drops_all_before_the_next_pass(graphs: PassGraphs, scaled: Scaled) -> None:
    graphs.require(("a",))
    for _ in range(3):
        graphs.compute(scaled.forward, arguments(1.0))
    graphs.require(("a",))
    graphs.compute(scaled.forward, arguments(1.0))
    assert graphs._passes
    scaled.table = scaled.table * 2
    graphs.require(("b",))
    (output,) = graphs.compute(scaled.forward, arguments(1.0))
    assert output[0, 3].item() == 6.0
