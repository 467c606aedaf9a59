"""What `python -m benchmarks.launches` counts: the simulated GPU's own launches, and those of a published checkpoint's
pass, so that a change that launches more is seen."""

from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.launches.chips import LAUNCH_S, Chip
from benchmarks.launches.passes import DRAWINGS, counted
from benchmarks.launches.tally import Operation, Tally, Work

GPU = torch.device("cuda")


def small_operations(values: torch.Tensor) -> torch.Tensor:
    """Views, copies, in place, joined."""
    turned = nn.functional.gelu(values).transpose(1, 2)
    joined = torch.cat([values.add_(1), values * 2, turned.transpose(1, 2)], -1)
    return joined[:, :, ::2].contiguous()


def test_what_is_counted_is_what_the_device_launches(gpu: Any) -> None:
    tally, values = Tally(), torch.randn(3, 6, 8).to(GPU)
    with torch.inference_mode():
        with tally.counting() as work:
            small_operations(values)
        before = gpu.launches()
        small_operations(values)
    assert work.host_launches == work.launches("small") == gpu.launches() - before == 5


def test_a_graph_is_one_launch_of_all_its_kernels(gpu: Any) -> None:
    tally, values = Tally(), torch.zeros(4, device=GPU)

    def run() -> None:
        values.add_(1).mul_(2)

    with tally.counting() as work:
        replay = tally.capture(run)
        for _ in range(3):
            replay()
    assert work.host_launches == 3
    assert work.operations == {Operation("small", 32, 0): 6}


def test_a_pass_of_klein_launches_no_more_than_it_did(gpu: Any) -> None:
    """Less is better: lower the figures then, and those of docs/reference/performance.md."""
    drawing = next(each for each in DRAWINGS if each.name == "FLUX.2 klein 4B")
    (found,) = counted(drawing, (512,))
    assert found.eager.launches() == found.eager.host_launches <= 1069
    assert found.served.launches("small") <= 387
    assert found.served.bytes("small") <= 8.5e9
    assert found.served.host_launches <= 9
    assert found.served.flop("product") == pytest.approx(found.eager.flop("product"))
    assert found.served.flop("attention") == pytest.approx(found.eager.flop("attention"))


def test_a_chip_takes_as_long_as_what_bounds_it() -> None:
    chip = Chip("a chip", tflops=1, tbytes_s=1)
    work = Work()
    work.operations[Operation("small", 9 * 10**11, 0)] = 1
    assert chip.seconds(work) == pytest.approx(1)
    work.operations[Operation("product", 9 * 10**11, 66 * 10**11)] = 1
    assert chip.seconds(work) == pytest.approx(11)
    work.host_launches = round(20 / LAUNCH_S)
    assert chip.seconds(work) == pytest.approx(20)
