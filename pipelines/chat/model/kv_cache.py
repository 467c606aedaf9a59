"""Keys and values of the sequences that decode together, in pages: a sequence has as many as its tokens need.

Each layer has one buffer for keys and one for values, [pages, PAGE, heads, head size]. A forward pass writes its
tokens to their places there and attends to what `CacheWindow` says. Attention wants rows of one length: those of
similar length are gathered into one tensor for one layer at a time (`paged_attention`), and a single row whose pages
follow each other is a view. Prompts that share a pass are one row: their pages are gathered one after another.
Writing is idempotent: a step that failed can be repeated.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from pipelines.chat.model.kv_pages import PAGE, Lease, Pages, contiguous
from pipelines.device.failures import is_out_of_memory
from pipelines.device.memory import available_bytes

SHORT: int = 256  # tokens; rows below it are not told apart by length
Bounds = tuple[int, int]  # of rows: the first, and the one behind the last


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows first to end - 1 of a forward pass, that attend to `length` positions each."""

    first: int
    end: int
    length: int
    table: torch.Tensor | None  # the pages of all rows, row by row; 0 beyond a row's own, which its mask hides
    start_page: int = 0  # without a table: of a single row whose pages follow each other


@dataclass(frozen=True, slots=True)
class CacheWindow:
    """What one forward pass writes and attends to."""

    slots: torch.Tensor  # where its tokens go: page * PAGE + place in the page
    groups: tuple[RowGroup, ...]
    start: int  # tokens before the first of the pass
    skip: int = 0  # tokens at the beginning of the pass that are not written
    causal: bool = False  # one row, whose tokens attend to all up to themselves: of a prompt, not from its start on

    @property
    def length(self) -> int:
        """Return how many positions the longest row attends to."""
        return max(group.length for group in self.groups)

    @property
    def is_whole(self) -> bool:
        """Return whether one tensor has all keys that the pass attends to."""
        return len(self.groups) == 1 and not self.causal


class KVCacheLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values. The first forward pass allocates them."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.pages = 0
        self.window = CacheWindow(torch.zeros(0), (), 0)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate zeros, not uninitialized memory: a masked position weighs nothing only if it is a number."""
        self.keys, self.values = _zeros(key_states, self.pages), _zeros(value_states, self.pages)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's tokens. Return what it attends to, or, for several groups of rows or a chunk of a prompt,
        the tokens themselves. The keys have this layer as `paged_layer`, by which attention finds its groups."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._write(self.keys, key_states)
        self._write(self.values, value_states)
        if self.window.is_whole:
            key_states, value_states = self.gather(self.window.groups[0])
        key_states.paged_layer = self  # type: ignore[attr-defined]
        return key_states, value_states

    def gather(self, group: RowGroup) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values, [rows, heads, length, head size]."""
        return _gather(self.keys, group), _gather(self.values, group)

    def resize(self, pages: int) -> None:
        """Make room for so many pages, contents included. Without memory for it nothing changes."""
        if self.is_initialized and self.keys.shape[0] < pages:
            self.keys, self.values = _resized(self.keys, pages), _resized(self.values, pages)
        self.pages = pages

    def release(self) -> None:
        """Free the buffers."""
        if self.is_initialized:
            self.is_initialized = False
            del self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length and offset of a mask, for models that request it: `ModelRunner` makes the masks."""
        return self.window.length, 0

    def get_seq_length(self) -> int:
        """Return the tokens that were there before those of the pass."""
        return self.window.start

    def get_max_length(self) -> int:
        """Return -1: the layer has no bound of its own."""
        return -1

    def token_bytes(self) -> int:
        """Return the bytes of one token; 0 before the first forward pass."""
        if not self.is_initialized:
            return 0
        return sum(buffer[0, 0].numel() * buffer.element_size() for buffer in (self.keys, self.values))

    def _write(self, buffer: torch.Tensor, states: torch.Tensor) -> None:
        tokens = states[:, :, self.window.skip :].transpose(1, 2).flatten(0, 1)  # one row of many, or many of one
        buffer.flatten(0, 1).index_copy_(0, self.window.slots, tokens)


class KVCache:
    """The pages, and the buffers of every layer: `capacity_tokens` at most."""

    def __init__(self, layers: int, capacity_tokens: int, device: torch.device | None = None) -> None:
        self._layers = [KVCacheLayer() for _ in range(layers)]
        self._device = device
        self._window = CacheWindow(torch.zeros(0), (), 0)
        self._room = 0  # pages that the buffers have
        self._capacity_tokens = capacity_tokens
        self._pages = Pages(capacity_tokens // PAGE)
        self.before_move: Callable[[], None] = lambda: None  # of whoever keeps the places of buffers
        self.spare_bytes = 0  # of the device that buffers leave to others as they grow further than they must
        self.cache = Cache(layers=self._layers)  # as transformers' models take it

    @property
    def capacity_tokens(self) -> int:
        """Return how many tokens all sequences may have together."""
        return self._capacity_tokens

    @property
    def used_tokens(self) -> int:
        """Return how many tokens the pages of the running sequences have room for."""
        return self._pages.used * PAGE

    def set_capacity(self, tokens: int) -> None:
        """Change the capacity while no sequence has pages. What exceeds it is freed, with all that was kept."""
        self._capacity_tokens = tokens
        if self._room * PAGE > tokens:
            self.clear()
        self._pages.limit = tokens // PAGE

    def begin(self, scope: Hashable, tokens: Sequence[int]) -> tuple[Lease, int]:
        """Return a lease on the pages that hold the beginning of `tokens` already, and how many tokens those are."""
        lease = self._pages.match(scope, tokens)
        return lease, len(lease.pages) * PAGE

    def reserve(self, lease: Lease, tokens: int) -> bool:
        """Make room for so many tokens of a sequence. False if there is none, on the device either."""
        if not self._pages.extend(lease, tokens):
            return False
        if self._pages.required_pages <= self._room or self._grow(self._pages.required_pages):
            return True
        self._give_back(lease)
        return False

    def share(self, lease: Lease, tokens: Sequence[int], cached: int) -> None:
        """Let other sequences of its scope begin with the first `cached` of its tokens."""
        self._pages.share(lease, tokens, cached)

    def release(self, lease: Lease) -> None:
        """Free the pages of a sequence."""
        self._pages.release(lease)

    def token_bytes(self) -> int:
        """Return the bytes of one token, over all layers. 0 before the first forward pass."""
        return sum(layer.token_bytes() for layer in self._layers)

    def layer_token_bytes(self) -> int:
        """Return the bytes of one token in the largest layer. 0 before the first forward pass."""
        return max((layer.token_bytes() for layer in self._layers), default=0)

    def set_window(self, window: CacheWindow) -> None:
        """Set what the next forward pass writes and attends to."""
        self._window = window
        for layer in self._layers:
            layer.window = window

    @property
    def window_length(self) -> int:
        """Return how many positions the longest row of the next pass attends to."""
        return self._window.length

    def group(self, leases: Sequence[Lease], lengths: Sequence[int], bounds: Iterable[Bounds]) -> tuple[RowGroup, ...]:
        """Return the rows of a pass, in groups with these bounds."""
        return tuple(self._group(first, end, leases[first:end], lengths[first]) for first, end in bounds)

    def pack(self, leases: Sequence[Lease], lengths: Sequence[int]) -> RowGroup:
        """Return one row that attends to the pages of all of these sequences, one after another."""
        pages = [lease.pages[: -(-length // PAGE)] for lease, length in zip(leases, lengths, strict=True)]
        table = torch.tensor([page for each in pages for page in each], device=self._device)
        return RowGroup(0, 1, len(table) * PAGE, table)

    def _group(self, first: int, end: int, leases: Sequence[Lease], tokens: int) -> RowGroup:
        count = -(-tokens // PAGE)
        if end - first == 1 and contiguous(pages := leases[0].pages[:count]):
            return RowGroup(first, end, count * PAGE, None, pages[0])
        table = torch.tensor(page_table(leases, count), device=self._device)
        return RowGroup(first, end, count * PAGE, table)

    def clear(self) -> None:
        """Free all memory, and with it every page. Call it while no sequence has any."""
        self._pages.clear()
        self._pages.limit = self._capacity_tokens // PAGE
        self._room = 0
        self.before_move()
        for layer in self._layers:
            layer.release()

    def _grow(self, pages: int) -> bool:
        """Make the buffers larger: twice as large if there is memory for it, since growing copies everything."""
        self.before_move()
        for size in (max(pages, min(2 * self._room, self._pages.limit, self._fitting())), pages):
            try:
                for layer in self._layers:
                    layer.resize(size)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            else:
                self._room = size
                return True
        return False

    def _fitting(self) -> int:
        """Return for how many pages the device has memory, without what is spared. One buffer at a time is copied."""
        if self._device is None or self._device.type == "cpu" or not (token_bytes := self.token_bytes()):
            return self._pages.limit
        copied = self._room * PAGE * self.layer_token_bytes() // 2
        left = available_bytes(self._device) - self.spare_bytes - copied
        return self._room + left // (PAGE * token_bytes)

    def _give_back(self, lease: Lease) -> None:
        """Do without the pages beyond the buffers, for which the device has no memory."""
        self._pages.limit = self._room
        self._pages.free_pages_from(self._room, lease)


def split_by_length(lengths: Sequence[int], *, apart: bool) -> list[Bounds]:
    """Return the groups of rows by length, given the longest first. `apart`: rows of much different length are in
    groups of their own."""
    bounds = [0]
    for row, length in enumerate(lengths):
        longest = lengths[bounds[-1]]
        if apart and longest > SHORT and 2 * max(length, SHORT) <= longest:
            bounds.append(row)
    return list(pairwise([*bounds, len(lengths)]))


def page_table(leases: Sequence[Lease], count: int) -> list[int]:
    """Return the first `count` pages of each row; 0 beyond a row's own, which its mask hides."""
    return [page for lease in leases for page in (*lease.pages[:count], *[0] * (count - len(lease.pages)))]


def _zeros(states: torch.Tensor, pages: int) -> torch.Tensor:
    return states.new_zeros(pages, PAGE, states.shape[1], states.shape[3])


def _resized(old: torch.Tensor, pages: int) -> torch.Tensor:
    new = old.new_zeros(pages, *old.shape[1:])
    new[: old.shape[0]] = old
    return new


def _gather(buffer: torch.Tensor, group: RowGroup) -> torch.Tensor:
    if group.table is None:
        start = group.start_page * PAGE
        return buffer.flatten(0, 1)[None, start : start + group.length].transpose(1, 2)
    rows = buffer.index_select(0, group.table)
    return rows.view(group.end - group.first, group.length, *buffer.shape[2:]).transpose(1, 2)
