"""Keys and values of the sequences that decode together: row r of the batch has its tokens at positions 0, 1, 2 ...

Nothing is padded on the left, and positions beyond a row's length are masked. Rows come and go without touching the
others: a new sequence takes the next row, and the last row moves into one that becomes free. Writing is idempotent: a
step that failed can be repeated.
"""

from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from pipelines.device.failures import is_out_of_memory

LENGTH_MULTIPLE = 64  # the length that attention covers is the longest row's, rounded up to this


@dataclass(frozen=True, slots=True)
class CacheWindow:
    """The tokens that one forward pass writes, and the `length` of the cache that it attends to.

    In a prefill, `row` takes `count` tokens from position `start` on. In a decode step, rows 0 to `rows` - 1 take one
    token each, at `positions` [rows].
    """

    length: int
    rows: int = 1
    row: int = 0
    start: int = 0
    count: int = 1
    positions: torch.Tensor | None = None


@dataclass(slots=True)
class CacheShape:
    """The rows and tokens that the buffers of every layer have room for, shared by all layers."""

    rows: int = 0
    tokens: int = 0  # a row
    window: CacheWindow = CacheWindow(0)  # of the next forward pass


class KVCacheLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values, [rows, heads, tokens, head size] each. The first forward pass allocates them."""

    is_sliding = False

    def __init__(self, shape: CacheShape) -> None:
        super().__init__()
        self.shape = shape

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the buffers as zeros, not uninitialized memory: a masked position weighs nothing only if it is a
        number."""
        size = self.shape.rows, self.shape.tokens
        self.keys, self.values = _zeros(key_states, size), _zeros(value_states, size)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the window's tokens, and return the keys and values that it attends to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.shape.window
        return self._write(self.keys, key_states, window), self._write(self.values, value_states, window)

    def resize(self, size: tuple[int, int]) -> None:
        """Reallocate to so many rows and tokens, contents included. Without memory for it nothing changes."""
        if self.is_initialized:
            self.keys, self.values = _resized(self.keys, size), _resized(self.values, size)

    def release(self) -> None:
        """Free the layer's keys and values."""
        if self.is_initialized:
            self.is_initialized = False
            del self.keys, self.values

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a row into another row."""
        if self.is_initialized:
            for buffer in (self.keys, self.values):
                buffer[target, :, :length] = buffer[source, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length and offset of a mask, for models that request it: `ModelRunner` makes the masks."""
        return self.shape.window.length, 0

    def get_seq_length(self) -> int:
        """Return the number of tokens that were there before the window's."""
        return self.shape.window.start

    def get_max_length(self) -> int:
        """Return -1: the layer has no bound of its own."""
        return -1

    def token_bytes(self) -> int:
        """Return the bytes of one token's keys and values; 0 until the first forward pass."""
        if not self.is_initialized:
            return 0
        return sum(buffer[0, :, 0].numel() * buffer.element_size() for buffer in (self.keys, self.values))

    def _write(self, buffer: torch.Tensor, states: torch.Tensor, window: CacheWindow) -> torch.Tensor:
        if window.positions is None:
            buffer[window.row, :, window.start : window.start + window.count] = states[0]
            return buffer[window.row : window.row + 1, :, : window.length]
        buffer[torch.arange(window.rows, device=buffer.device), :, window.positions] = states[:, :, 0]
        return buffer[: window.rows, :, : window.length]


class KVCache:
    """The buffers of every layer: rows x tokens, `capacity_tokens` at most."""

    def __init__(self, layers: int, max_rows: int, max_tokens: int, capacity_tokens: int) -> None:
        self._shape = CacheShape()
        self._max_rows = max_rows
        self._max_tokens = _round_up(max_tokens, LENGTH_MULTIPLE)  # a row
        self.capacity_tokens = capacity_tokens  # of all rows together
        self._layers = [KVCacheLayer(self._shape) for _ in range(layers)]
        self.cache = Cache(layers=self._layers)  # as transformers' models take it

    def reserve(self, rows: int, tokens: int) -> bool:
        """Make room for so many rows, the longest of so many tokens; False if that exceeds the capacity.

        Rows and tokens beyond that may be lost. If the device has no memory for just that much either, that error is
        raised, and the tokens that fit both the old size and the new one are kept.
        """
        shape = self._shape
        if rows <= shape.rows and tokens <= shape.tokens:
            return True
        tokens = _round_up(tokens, LENGTH_MULTIPLE)
        generous = min(2 * rows, self._max_rows), min(2 * tokens, self._max_tokens)  # growing copies everything
        for size in (_at_least(generous, shape), _at_least((rows, tokens), shape), (rows, tokens)):
            if size[0] * size[1] <= self.capacity_tokens:
                try:
                    self._resize(size)
                except Exception as error:
                    if size == (rows, tokens) or not is_out_of_memory(error):
                        raise
                else:
                    return True
        return False

    def _resize(self, size: tuple[int, int]) -> None:
        """Resize every layer to rows x tokens. A layer may run out of memory, which leaves those after it at the old
        size."""
        shape = self._shape
        shape.rows, shape.tokens = min(shape.rows, size[0]), min(shape.tokens, size[1])
        for layer in self._layers:
            layer.resize(size)
        shape.rows, shape.tokens = size

    def token_bytes(self) -> int:
        """Return the bytes of one token, over all layers. 0 before the first forward pass."""
        return sum(layer.token_bytes() for layer in self._layers)

    def set_window(self, window: CacheWindow) -> None:
        """Set the rows and tokens that the next forward pass writes and attends to."""
        self._shape.window = window

    def attention_length(self, tokens: int) -> int:
        """Return the number of positions that attention covers when the longest row has so many tokens."""
        return min(_round_up(tokens, LENGTH_MULTIPLE), self._shape.tokens)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a row into another row, in every layer."""
        for layer in self._layers:
            layer.copy_row(source, target, length)

    def clear(self) -> None:
        """Release all memory, and with it every row."""
        self._shape.rows = self._shape.tokens = 0
        for layer in self._layers:
            layer.release()


def _zeros(states: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return states.new_zeros(size[0], states.shape[1], size[1], states.shape[3])


def _resized(old: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    new = _zeros(old, size)
    rows, tokens = min(old.shape[0], size[0]), min(old.shape[2], size[1])
    new[:rows, :, :tokens] = old[:rows, :, :tokens]
    return new


def _at_least(size: tuple[int, int], shape: CacheShape) -> tuple[int, int]:
    return max(size[0], shape.rows), max(size[1], shape.tokens)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
