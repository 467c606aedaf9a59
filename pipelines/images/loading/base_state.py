"""The weights of a model beneath its adapters, digested, so that changes that an adapter leaves behind are seen."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from pipelines.device.memory import plain_tensors

WHOLE: Final = 2**16  # bytes up to which a tensor is digested as it is
WORDS: Final = 1024  # of 64 bits, that stand for a larger one
INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a number


def base_modules(module: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield a module and all in it, by their names without adapters: a layer with adapters is the one beneath."""
    if isinstance(module, BaseTunerLayer):
        yield from base_modules(module.get_base_layer(), prefix)
        return
    yield prefix, module
    for name, child in module.named_children():
        yield from base_modules(child, f"{prefix}.{name}" if prefix else name)


def base_state(components: Mapping[str, torch.nn.Module]) -> dict[str, str]:
    """Return a digest of each module by its component and name: its class, and its weights' names, shapes and numbers.

    Sums of their bits stand for large tensors: the device computes them, and little is copied from it.
    """
    return {
        f"{component}.{name}": _digest(each)
        for component, module in components.items()
        for name, each in base_modules(module)
    }


def weights_digest(components: Mapping[str, Any]) -> str:
    """Return one digest of all weights of the components as they are in memory, adapters in them included."""
    digest = hashlib.blake2b(digest_size=16)
    modules = {name: part for name, part in components.items() if isinstance(part, torch.nn.Module)}
    for component, module in sorted(modules.items()):
        for name, each in module.named_modules():
            digest.update(f"{component}.{name} {_digest(each)}".encode())
    return digest.hexdigest()


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the last parts of the names of modules whose digests differ, each once."""
    differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return list(dict.fromkeys(name.rsplit(".", 1)[-1] for name in differing))


def _digest(module: torch.nn.Module) -> str:
    digest = hashlib.blake2b(type(module).__name__.encode(), digest_size=16)
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        for part in plain_tensors(tensor):
            digest.update(f"{name} {part.dtype} {tuple(part.shape)}".encode())
            for numbers in _numbers(part):
                digest.update(numbers.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _numbers(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield integers that stand for a tensor: of a large one, sums of its 64-bit words, which a device and a host read
    as fast as their memory is. None of one without data."""
    if tensor.is_meta or tensor.element_size() not in INTEGERS:
        return
    bits = tensor.view(INTEGERS[tensor.element_size()])
    if bits.nbytes <= WHOLE:
        yield bits
        return
    flat = bits.flatten()
    row = WORDS * 8 // flat.element_size()
    whole = flat[: len(flat) // row * row]
    if whole.storage_offset() * whole.element_size() % 8:
        whole = whole.clone()
    yield whole.view(torch.int64).view(-1, WORDS).sum(0)
    yield flat[len(whole) :]
