"""Keys and values of the rows that decode together: row r keeps its tokens at places 0, 1, 2 ... of slot r.

Nothing is padded on the left, so a row's places are its positions, and whatever lies behind its length is masked. Rows
come and go without touching the others: a joining row takes the next slot, and the last row moves into the slot of one
that leaves. Writing is idempotent: a step that failed can be taken again.
"""

from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

GRAIN = 64  # how finely the length that attention looks at follows the longest row


@dataclass(frozen=True, slots=True)
class Window:
    """What one forward pass writes, and how much of the slots it looks at.

    In a prefill one slot takes `count` tokens from place `start` on; otherwise slots 0 to rows - 1 take one token
    each, at `places` [rows].
    """

    length: int
    rows: int = 1
    slot: int = 0
    start: int = 0
    count: int = 1
    places: torch.Tensor | None = None


@dataclass(slots=True)
class Shape:
    """What the buffers have room for."""

    rows: int = 0
    tokens: int = 0
    window: Window = Window(0)  # what the forward pass that comes next writes


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values, [slots, heads, places, size] each; made when the layer first says how large."""

    is_sliding = False

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Zeros, not whatever memory holds: a masked place weighs nothing only if it is a number."""
        self.keys, self.values = self._room(key_states), self._room(value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the window's tokens; return what it looks at."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.shape.window
        return self._write(self.keys, key_states, window), self._write(self.values, value_states, window)

    def resize(self) -> None:
        """Take the shape's new size, with everything in its place."""
        if self.is_initialized:
            self.keys, self.values = self._resized(self.keys), self._resized(self.values)

    def forget(self) -> None:
        """Let go of the buffers."""
        if self.is_initialized:
            self.is_initialized = False
            del self.keys, self.values

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a row to another slot."""
        if self.is_initialized:
            for buffer in (self.keys, self.values):
                buffer[target, :, :length] = buffer[source, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The masks are made by `BatchForward`; this is for models that look all the same."""
        return self.shape.window.length, 0

    def get_seq_length(self) -> int:
        """Tokens that were there before the window's."""
        return self.shape.window.start

    def get_max_length(self) -> int:
        """No bound of its own."""
        return -1

    def token_bytes(self) -> int:
        """Of one token in one slot."""
        if not self.is_initialized:
            return 0
        return sum(buffer[0, :, 0].numel() * buffer.element_size() for buffer in (self.keys, self.values))

    def _room(self, states: torch.Tensor) -> torch.Tensor:
        return states.new_zeros(self.shape.rows, states.shape[1], self.shape.tokens, states.shape[3])

    def _resized(self, old: torch.Tensor) -> torch.Tensor:
        new = self._room(old)
        rows, tokens = min(old.shape[0], new.shape[0]), min(old.shape[2], new.shape[2])
        new[:rows, :, :tokens] = old[:rows, :, :tokens]
        return new

    def _write(self, buffer: torch.Tensor, states: torch.Tensor, window: Window) -> torch.Tensor:
        if window.places is None:
            buffer[window.slot, :, window.start : window.start + window.count] = states[0]
            return buffer[window.slot : window.slot + 1, :, : window.length]
        buffer[torch.arange(window.rows, device=buffer.device), :, window.places] = states[:, :, 0]
        return buffer[: window.rows, :, : window.length]


class Slots:
    """The buffers of every layer, with room for `most_places` tokens in all."""

    def __init__(self, layers: int, most_rows: int, most_tokens: int, most_places: int) -> None:
        self._shape = Shape()
        self._most_rows = most_rows
        self._most_tokens = _up(most_tokens, GRAIN)
        self.most_places = most_places
        self._layers = [SlotLayer(self._shape) for _ in range(layers)]
        self.cache = Cache(layers=self._layers)

    def reserve(self, rows: int, tokens: int) -> bool:
        """Have room for so many rows, the longest of so many tokens; False when that is too much.

        Slots and places beyond that may be lost.
        """
        shape = self._shape
        if rows <= shape.rows and tokens <= shape.tokens:
            return True
        tokens = _up(tokens, GRAIN)
        generous = min(2 * rows, self._most_rows), min(2 * tokens, self._most_tokens)  # growing copies everything
        for room in (_larger(generous, shape), _larger((rows, tokens), shape), (rows, tokens)):
            if room[0] * room[1] <= self.most_places:
                shape.rows, shape.tokens = room
                for layer in self._layers:
                    layer.resize()
                return True
        return False

    def token_bytes(self) -> int:
        """Of one token in one slot, over all layers. 0 before the first forward pass."""
        return sum(layer.token_bytes() for layer in self._layers)

    def look(self, window: Window) -> None:
        """The next forward pass writes and sees this window."""
        self._shape.window = window

    def length(self, tokens: int) -> int:
        """How far attention looks when the longest row has so many tokens."""
        return min(_up(tokens, GRAIN), self._shape.tokens)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a row of `length` tokens to another slot."""
        for layer in self._layers:
            layer.move(source, target, length)

    def clear(self) -> None:
        """Give all memory back. Nothing that was kept is there any more."""
        self._shape.rows = self._shape.tokens = 0
        for layer in self._layers:
            layer.forget()


def _larger(room: tuple[int, int], shape: Shape) -> tuple[int, int]:
    return max(room[0], shape.rows), max(room[1], shape.tokens)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
