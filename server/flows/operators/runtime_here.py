"""What `runtime = "auto"` means on this machine, before anything is loaded: the server imports no torch."""

import os
from functools import partial
from typing import Final

from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.memory.device_bytes import component_bytes, device_bytes
from pipelines.checkpoints.memory.host_bytes import host_bytes
from pipelines.checkpoints.memory.runtime import choose_runtime, name_of
from pipelines.checkpoints.memory.shares import Room, host_memory_bytes, offload_budget, weights_budget
from server.backends.gpus import compute_capability, list_gpus

ITEM_BYTES: Final = 2  # of a weight on a GPU


def meaning_here(files: CheckpointFiles) -> str:
    """Say what is chosen for a checkpoint on each kind of GPU here, if nothing else uses it. Raises CheckpointError for
    files that can't be loaded."""
    found = list_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    gpus = {(gpu.name, gpu.total_bytes): gpu for gpu in found if gpu.problem is None}
    if not found:
        return "plain settings: no GPU is found here"
    host = offload_budget(host_memory_bytes())
    listed = []
    for (name, total), gpu in gpus.items():
        room = Room(int(weights_budget(total, total, 0)), host)
        where = f"on this {name} of {total / 1e9:.0f} GB"
        listed.append(f"{where}: {_choice(files, room, compute_capability(gpu.uuid))}")
    return "; ".join([*listed, *filter(None, (gpu.problem for gpu in found))])


def _choice(files: CheckpointFiles, room: Room, capability: tuple[int, int]) -> str:
    sizes_of = partial(component_bytes, files, ITEM_BYTES)
    chosen, _ = choose_runtime(sizes_of, room, capability)
    parts = sizes_of(chosen.quantize)
    on_device, on_host = device_bytes(parts, chosen.offload), host_bytes(parts, chosen)
    takes = f"{on_device / 2**30:.1f} GiB of the GPU for weights"
    if on_host:
        takes += f", {on_host / 2**30:.1f} GiB of host memory"
    if room.holds(on_device, on_host):
        return f"{name_of(chosen)}, {takes}"
    budgets = f"{room.device_bytes / 2**30:.1f} GiB of the GPU and {room.host_bytes / 2**30:.1f} GiB of the host"
    return f"it does not fit: its smallest form takes {takes}, and weights may take {budgets}"
