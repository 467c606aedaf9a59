"""Memory budgets of the device and the host, and the dtype of weights and what has their memory."""

import gc
import os
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pipelines.checkpoints.memory.shares import CHAT_CACHE_SHARE, host_memory_bytes, weights_budget
from pipelines.device.failures import clear_frames, is_out_of_memory, watch_device
from pipelines.device.heap import return_freed_memory
from pipelines.protocol.images import Dtype
from pipelines.protocol.messages import GpuMemory, WorkerMemory

HOST_SHARE = 0.5
BFLOAT16_CAPABILITY = (8, 0)  # Ampere; GPUs before it emulate bfloat16
HELD_SHARE = 0.05  # of the device's memory for the latents of paused runs
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits in bytes: weights on the device, weights offloaded to the host, tensors that paused runs hold."""

    device_bytes: int
    host_bytes: int
    held_bytes: int

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
        free, total = torch.cuda.mem_get_info(device) if device.type == "cuda" else (host, host)
        others = others_bytes + total * chat_cache_share if others_bytes else 0
        device_bytes = weights_budget(total, free, others) if device_gib is None else device_gib * 2**30
        return cls(
            device_bytes=int(device_bytes),
            host_bytes=int(host * HOST_SHARE if host_gib is None else host_gib * 2**30 / image_workers),
            held_bytes=int(total * HELD_SHARE),
        )


def chat_cache_bytes(device: torch.device, share: float = CHAT_CACHE_SHARE) -> int:
    """Return what the KV caches of all chat checkpoints may grow to."""
    total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else host_memory_bytes()
    return int(total * share)


def measure_memory(device: torch.device) -> WorkerMemory:
    """Return the memory that this process and its GPU use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    gpu = None
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        gpu = GpuMemory(total, free, torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device))
    return WorkerMemory(pages * os.sysconf("SC_PAGE_SIZE"), gpu)


def available_bytes(device: torch.device) -> int:
    """Return what a GPU has left for new tensors of this process, with what its allocator keeps."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


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
