"""The digest of a checkpoint's weights, whatever its tensors are made of."""

from collections.abc import Iterator

import pytest
import torch
from torch.distributed import HashStore, destroy_process_group, init_process_group
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from pipelines.images.loading.base_state import weights_digest


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    destroy_process_group()


def test_weights_that_are_divided_over_devices_count_by_their_numbers(mesh: DeviceMesh) -> None:
    plain, divided, other = (torch.nn.Linear(8, 4) for _ in range(3))
    divided.load_state_dict(plain.state_dict())
    for layer in (divided, other):
        layer.weight = torch.nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(0)]))
    assert weights_digest({"transformer": divided}) == weights_digest({"transformer": plain})
    assert weights_digest({"transformer": other}) != weights_digest({"transformer": plain})
