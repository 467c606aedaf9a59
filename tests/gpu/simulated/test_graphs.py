"""CUDA graphs of the simulated GPU: a capture launches nothing, and a replay is the same operators on its memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pipelines.device.graph_capture import CudaCapture, free_failed
from pipelines.images.denoising.pass_graphs import CAPTURED_AT, PassGraphs
from tests.simulated_gpu import device

GPU = torch.device("cuda")
Run = Callable[[], object]


@pytest.fixture(autouse=True)
def inference() -> Any:
    with torch.inference_mode():
        yield


def captured(run: Run) -> Run:
    """Capture a run that needs no warmup."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            run()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay


def test_a_graph_computes_from_what_lies_in_its_places_now(gpu: Any) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(GPU)
    inputs, outputs, written = torch.zeros(3, 8, device=GPU), torch.zeros(3, 4, device=GPU), torch.zeros(9, device=GPU)
    places = torch.tensor([1, 5, 7], device=GPU)

    def run() -> None:
        outputs.copy_(network(inputs))
        written.index_copy_(0, places, outputs.softmax(dim=-1).amax(dim=-1))

    replay = captured(run)
    assert not outputs.any(), "a capture launches nothing"
    assert not written.any()
    for seed in range(3):
        values = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
        inputs.copy_(values)
        before = gpu.launches()
        replay()
        assert gpu.launches() == before + 1
        expected = network(values.to(GPU))
        assert torch.equal(outputs, expected)
        assert torch.equal(written[places], expected.softmax(dim=-1).amax(dim=-1))


def test_what_a_capture_has_made_holds_nothing_until_its_graph_is_replayed() -> None:
    inputs, made = torch.ones(4, device=GPU), []
    replay = captured(lambda: made.append(inputs * 2))
    assert made[0].isnan().all()
    replay()
    assert made[0].tolist() == [2.0] * 4


@pytest.mark.parametrize(
    "wait",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: tensor.cpu(),
        lambda tensor: tensor.copy_(torch.zeros(3)),
        lambda tensor: torch.cuda.synchronize(),
        lambda tensor: torch.cuda.current_stream().record_event().synchronize(),
    ],
)
def test_what_makes_the_host_wait_can_not_be_captured(wait: Callable[[torch.Tensor], object]) -> None:
    tensor = torch.ones(3, device=GPU)
    with pytest.raises(torch.AcceleratorError, match="previous error during capture") as raised:
        captured(lambda: wait(tensor * 2))
    assert "operation not permitted when stream is capturing" in str(raised.value.__context__)
    assert not torch.cuda.is_current_stream_capturing()
    captured(lambda: tensor.mul_(2))()
    assert tensor.tolist() == [2.0] * 3


def test_a_graph_whose_memory_was_freed_is_found() -> None:
    places = [torch.ones(3, device=GPU)]
    replay = captured(lambda: places[0].add_(1))
    places.clear()
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        replay()
    assert [seen.kind for seen in device.log.take()].count("free") == 1


def test_a_graphs_memory_is_free_once_the_graph_is_gone() -> None:
    tensor, before = torch.ones(2**16, device=GPU), torch.cuda.memory_allocated()
    replay = captured(lambda: (tensor * 2).mul_(2))
    replay()
    assert torch.cuda.memory_allocated() >= before + 2**18
    del replay
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("forgotten", ["before", "after", "nothing"])
def test_a_capture_that_streams_do_not_wait_for_is_a_race(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its warmup reads what was launched before it, and writes what is read after it."""
    capture, tensor = CudaCapture(), torch.zeros(3, device=GPU)
    wait = device.Stream.wait_stream

    def wait_but(self: Any, other: Any) -> None:
        if ("before" if self.stream_id == capture._stream.stream_id else "after") != forgotten:
            wait(self, other)

    monkeypatch.setattr(device.Stream, "wait_stream", wait_but)
    tensor.add_(1)
    capture(lambda: tensor.add_(1))()
    assert ("race" in {seen.kind for seen in device.log.take()}) == (forgotten != "nothing")


def test_captures_that_are_alive_have_streams_of_their_own() -> None:
    """Torch hands out 32 in turn, and frees what cuBLAS works in on a graph's stream with the graph."""
    held = CudaCapture()
    for _ in range(40):
        assert CudaCapture()._stream.stream_id != held._stream.stream_id


def test_the_memory_of_what_can_not_be_captured_is_given_back() -> None:
    """Torch 2.13 keeps it until the process ends."""
    capture, tensor = CudaCapture(), torch.zeros(3, device=GPU)
    for failures in range(2):
        with pytest.raises(RuntimeError):
            capture(lambda: tensor.sum().item())
        assert device.kept_pools[capture._pool] == failures + 1
    with pytest.raises(ZeroDivisionError):
        capture(lambda: 1 / 0)  # in the run before the capture
    assert device.kept_pools[capture._pool] == 2
    free_failed(capture)
    assert device.kept_pools[capture._pool] == 0
    free_failed(capture)
    assert device.kept_pools[capture._pool] == 0


def test_a_denoiser_whose_passes_can_not_be_captured_keeps_no_memory_for_them() -> None:
    graphs, tensor = PassGraphs(GPU), torch.ones(3, device=GPU)
    before = device.kept_pools.total()
    for _ in range(CAPTURED_AT + 1):
        assert graphs.compute(lambda x: x * x.sum().item(), {"x": tensor}).tolist() == [3, 3, 3]
    assert graphs.refused is not None
    assert device.kept_pools.total() == before
