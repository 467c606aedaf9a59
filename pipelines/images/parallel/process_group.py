"""The collective operations of a process group: all ranks call them in the same order."""

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]  # public by the documentation
from torch.distributed.device_mesh import init_device_mesh

from pipelines.images.parallel.messages import Form

# Of one operation: the others have not come. Between passes nobody waits in one, so that this is far more than the
# ranks can be apart.
LIMIT: Final = timedelta(seconds=60)


class ProcessGroup:
    """This rank's place in the process group. Creating it waits for all ranks, which meet at `store`."""

    def __init__(self, rank: int, size: int, device: torch.device, store: Store) -> None:
        self.rank, self.size = rank, size
        self.device = torch.device("cuda", rank) if device.type == "cuda" else device
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # all ranks are on this machine
            os.environ.setdefault(name, "lo")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=LIMIT,
            device_id=self.device if self.device.type == "cuda" else None,
        )
        self.mesh = init_device_mesh(self.device.type, (size,), mesh_dim_names=("tensor",))
        self.context = self._context()

    def _context(self) -> Any:
        """Return the library's configuration of context parallelism. A pass is divided by Ulysses alone: gloo and
        torch's own attention have no ring."""
        from diffusers import ContextParallelConfig
        from diffusers.models._modeling_parallel import ParallelConfig

        mesh = init_device_mesh(self.device.type, (1, self.size), mesh_dim_names=("ring", "ulysses"))
        config = ParallelConfig(context_parallel_config=ContextParallelConfig(ulysses_degree=self.size, mesh=mesh))
        config.setup(self.rank, self.size, self.device, mesh=mesh)
        return config

    @property
    def position(self) -> int:
        """Return how many collective operations this rank has called: where it is, for the ranks to compare."""
        groups = {self.mesh.get_group(), self.context.context_parallel_config._ulysses_mesh.get_group()}
        return sum(group._get_sequence_number_for_group() for group in groups)

    def leave(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()

    def send(self, tensor: torch.Tensor) -> None:
        """Send a tensor from rank 0 to all others."""
        self.fill(tensor.detach().contiguous())

    def fill(self, tensor: torch.Tensor) -> torch.Tensor:
        """Receive a tensor of rank 0 into a contiguous one, and return that."""
        if tensor.numel():
            dist.broadcast(tensor.reshape(-1).view(torch.uint8), src=0)  # as bytes: backends do not know all dtypes
        return tensor

    def receive_all(self, forms: Sequence[Form]) -> list[torch.Tensor]:
        """Receive the tensors that rank 0 sends, of these shapes and dtypes, and return them."""
        return [self.fill(torch.empty(form.shape, dtype=form.dtype, device=self.device)) for form in forms]


def open_store(size: int) -> tuple[Store, int]:
    """Return the store at which the ranks meet, and its port, for rank 0. It listens on the loopback address alone."""
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    store = TCPStore(
        "127.0.0.1", port, size, is_master=True, wait_for_workers=False, timeout=LIMIT,
        master_listen_fd=listener.detach(),
    )  # fmt: skip
    return store, port


def join_store(port: int, size: int) -> Store:
    """Return the store of rank 0, for another rank."""
    return TCPStore("127.0.0.1", port, size, is_master=False, timeout=LIMIT)
