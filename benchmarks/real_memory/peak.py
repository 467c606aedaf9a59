"""The peak of the memory that fake tensors would take."""

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BLOCK: Final = 512  # bytes to which CUDA's allocator rounds


class Peak(TorchDispatchMode):
    """Counts the bytes of all storages that live while it is entered, and their peak. Those from before are not
    counted."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._live: dict[int, int] = {}
        self._now = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs)) if torch.is_tensor(tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if torch.is_tensor(tensor):
                self._count(tensor.untyped_storage(), given)
        return result

    def _count(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key = storage._cdata
        if key in self._live or key in given:
            return
        size = -(-storage.nbytes() // BLOCK) * BLOCK
        self._live[key] = size
        self._now += size
        self.bytes = max(self.bytes, self._now)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self._now -= self._live.pop(key, 0)


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return the bytes that a call takes at most beside what was there before, its results included."""
    with torch.inference_mode(), Peak() as peak:
        result = call()
    del result
    return peak.bytes


def fused_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> torch.Tensor:
    """Take the memory of a fused kernel for attention, (batch, heads, tokens, width): the output, and a log sum for
    each query. On a CPU torch's own would be counted as products of all tokens with each other."""
    batch, heads, tokens, _ = query.shape
    torch.empty(batch, heads, tokens, dtype=torch.float32)
    return query.new_empty(batch, tokens, heads, value.shape[-1]).transpose(1, 2)
