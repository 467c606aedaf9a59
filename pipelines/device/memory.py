"""Memory budgets of the device and the host, and the dtype of weights and what has their memory."""

import gc
import math
import os
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pipelines.checkpoints.errors import MemoryTaken
from pipelines.checkpoints.memory.shares import (
    CHAT_CACHE_SHARE,
    FREE_SHARE,
    Room,
    available_host_bytes,
    host_memory_bytes,
    offload_budget,
    weights_budget,
)
from pipelines.device.failures import clear_frames, is_out_of_memory, watch_device
from pipelines.device.heap import return_freed_memory
from pipelines.device.occupancy import explain_taken, numa_node
from pipelines.protocol.images import Dtype
from pipelines.protocol.messages import GpuMemory, WorkerMemory

HOST_SHARE = 0.5
BFLOAT16_CAPABILITY = (8, 0)  # Ampere; GPUs before it emulate bfloat16
HELD_SHARE = 0.05  # of the device's memory for the latents of paused runs
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits in bytes: weights on the device, evicted weights that wait on the host, tensors that paused runs hold, and
    weights on the host of checkpoints that are offloaded. They are true when they are made: `weigh` makes them anew."""

    device_bytes: int
    host_bytes: int
    held_bytes: int
    offload_bytes: float = math.inf
    is_measured: bool = False  # of the machine, and not given
    others_bytes: float | None = None  # that workers of other kinds will use; None: the device's figure was given

    @classmethod
    def of(
        cls,
        device: torch.device,
        device_gib: float | None = None,
        host_gib: float | None = None,
        others_bytes: int = 0,
        image_workers: int = 1,
        chat_cache_share: float = CHAT_CACHE_SHARE,
    ) -> Self:
        """Return the operator's figures, or shares of the machine's memory. `others_bytes` are those that workers of
        other kinds will use on the device beside the chat's cache; 0 without such workers.
        The memory of the host is divided between so many image workers, so on CPUs that of the device is too."""
        host = host_memory_bytes() / image_workers
        free, total = device_memory(device) if device.type == "cuda" else (host, host)
        others = others_bytes + total * chat_cache_share if others_bytes else 0
        device_bytes = weights_budget(total, free, others) if device_gib is None else device_gib * 2**30
        given = None if host_gib is None else host_gib * 2**30 / image_workers
        return cls(
            device_bytes=int(device_bytes),
            host_bytes=int(host * HOST_SHARE if given is None else given),
            held_bytes=int(total * HELD_SHARE),
            offload_bytes=offload_budget(host) if given is None else given,
            is_measured=True,
            others_bytes=others if device_gib is None else None,
        )

    def weigh(self, device: torch.device, on_host_bytes: int) -> Self:
        """Return the limits as they are now, beside what other programs have: of a worker that has so many bytes of
        weights on the host."""
        if not self.is_measured or device.type != "cuda":
            return self
        device_bytes = self.device_bytes
        if self.others_bytes is not None:
            free, total = device_memory(device)
            device_bytes = int(weights_budget(total, free + _reserved_bytes(device), self.others_bytes))
        left = FREE_SHARE * available_host_bytes() + on_host_bytes
        host_bytes = 0 if is_unified(device) else int(min(self.host_bytes, left))
        return replace(
            self, device_bytes=device_bytes, host_bytes=host_bytes, offload_bytes=min(self.offload_bytes, left)
        )

    def room(self, device: torch.device) -> Room:
        """Return what a checkpoint may take."""
        return Room(self.device_bytes, self.offload_bytes, device.type == "cuda" and is_unified(device))

    def alone_bytes(self, device: torch.device) -> int:
        """Return the limit for weights on the device if no program of others were there."""
        if self.others_bytes is None or device.type != "cuda":
            return self.device_bytes
        _, total = device_memory(device)
        return int(weights_budget(total, total, self.others_bytes))


def device_memory(device: torch.device) -> tuple[int, int]:
    """Return the bytes of a GPU that are free, and all that it has. Where its memory is the host's, or a node of it,
    pages that only cache files are free, though CUDA counts them as used: the kernel gives them back."""
    free, total = torch.cuda.mem_get_info(device)
    if is_unified(device):
        return min(total, max(free, available_host_bytes())), total
    return min(total, free + cached_bytes(device)), total


def is_unified(device: torch.device) -> bool:
    """Return whether a GPU and its host have one memory (GB10, Jetson)."""
    return bool(torch.cuda.get_device_properties(device).is_integrated)


def cached_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """Return the bytes of a GPU's memory in which the kernel caches files, where it is a node of the host's."""
    node = numa_node(device)
    file = root / f"sys/devices/system/node/node{node}/meminfo"
    if node is None or not file.is_file():
        return 0
    fields = (line.split() for line in file.read_text().splitlines())  # Node 1 Active(file): 12 kB
    return 1024 * sum(int(field[3]) for field in fields if field[2] in {"Active(file):", "Inactive(file):"})


def memory_taken(name: str, needed_bytes: float, left_bytes: float, device: torch.device) -> MemoryTaken:
    """Return the error of a checkpoint that would fit on a device if other programs did not have its memory."""
    free, total = device_memory(device)
    return MemoryTaken(
        f"{name} takes {needed_bytes / 2**30:.1f} GiB of the GPU, and there are {left_bytes / 2**30:.1f} GiB for "
        f"weights now: {explain_taken(device, total, free, _reserved_bytes(device))}. It is loaded once they have left "
        "the GPU. runtime.offload or runtime.quantize make it smaller."
    )


def _reserved_bytes(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device)


def chat_cache_bytes(device: torch.device, share: float = CHAT_CACHE_SHARE) -> int:
    """Return what the KV caches of all chat checkpoints may grow to."""
    total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else host_memory_bytes()
    return int(total * share)


def measure_memory(device: torch.device) -> WorkerMemory:
    """Return the memory that this process and its GPU use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    gpu = None
    if device.type == "cuda":
        free, total = device_memory(device)
        allocated, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        gpu = GpuMemory(total, free, allocated, peak, _reserved_bytes(device))
    return WorkerMemory(pages * os.sysconf("SC_PAGE_SIZE"), gpu)


def available_bytes(device: torch.device) -> int:
    """Return what a GPU has left for new tensors of this process, with what its allocator keeps."""
    kept = _reserved_bytes(device) - torch.cuda.memory_allocated(device)
    return device_memory(device)[0] + kept


def free_memory(device: torch.device) -> None:
    """Free unreferenced memory of the device, and give that of the host back to the system."""
    gc.collect()
    return_freed_memory()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def with_memory(device: torch.device, work: Callable[..., Result], *arguments: object) -> Result:
    """Return the result of `work(*arguments)`. If the device runs out of memory in it, as beside another program, free
    what nothing uses and try once more. Ends the process for an error after which the device no longer answers."""
    try:
        return free_on_failure(device, work, *arguments)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return free_on_failure(device, work, *arguments)


def free_on_failure(device: torch.device, work: Callable[..., Result], *arguments: object) -> Result:
    """Return the result of `work(*arguments)`. If it fails, for whatever reason, what it has placed on the device goes
    back to others before the error goes on. Ends the process for one after which the device no longer answers."""
    try:
        return watch_device(device, work, *arguments)
    except Exception as error:
        clear_frames(error)  # they hold what was loaded
        watch_device(device, free_memory, device)
        raise


def plain_tensors(weight: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that have a weight's memory: those that a quantized or divided one consists of, else itself."""
    if is_traceable_wrapper_subclass(weight):
        for name in weight.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(weight, name))
    elif isinstance(weight, torch.Tensor):  # not the mesh of devices that one is divided over
        yield weight.detach().as_subclass(torch.Tensor)


def copy_mapped_weights(modules: Iterable[Any]) -> None:
    """Copy the weights of modules that are mapped to files into memory, in place, one at a time: mapped ones become
    what a file holds now if it is written over, and end the process if it gets shorter. What is on a device is not
    mapped. Where the system does not say what is mapped, all on the host are copied."""
    mapped = _file_mappings()
    for module in modules:
        if isinstance(module, torch.nn.Module):
            for weight in (*module.parameters(), *module.buffers()):
                _copy_if_mapped(weight, mapped)


def _file_mappings() -> list[tuple[int, int]] | None:
    """Return the addresses, from and to, of this process that are mapped to files, in their order; None if unknown."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    fields = (line.split(maxsplit=5) for line in lines)
    ranges = (each[0].split("-") for each in fields if len(each) == 6 and each[5].startswith("/"))
    return [(int(begin, 16), int(end, 16)) for begin, end in ranges]


def _copy_if_mapped(weight: Any, mapped: list[tuple[int, int]] | None) -> None:
    if is_traceable_wrapper_subclass(weight):
        for name in weight.__tensor_flatten__()[0]:
            _copy_if_mapped(getattr(weight, name), mapped)
    elif isinstance(weight, torch.Tensor) and weight.device.type == "cpu" and weight.layout == torch.strided:
        address = weight.data_ptr()
        place = 0 if mapped is None else bisect(mapped, (address, 2**64))
        if mapped is None or (place and address < mapped[place - 1][1]):
            weight.data = weight.data.clone()


def compute_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """Return the dtype that weights are loaded in."""
    if dtype == "auto":
        if device.type == "cpu":
            return torch.float32
        native = torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY
        return torch.bfloat16 if native else torch.float16
    return DTYPES[dtype]
