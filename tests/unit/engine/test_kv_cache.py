"""The KV cache where the device has no memory for another size: what is promised is there, in every layer."""

import pytest
import torch

from pipelines.chat.kv_cache import CacheWindow, KVCache, KVCacheLayer

LAYERS = 3


def prefill(cache: KVCache, row: int, start: int, count: int) -> None:
    """Write tokens that are numbered by row and position; each layer attends to all up to them."""
    cache.set_window(CacheWindow(start + count, row=row, start=start, count=count))
    tokens = (1000.0 * row + torch.arange(start, start + count)).reshape(1, 1, count, 1)
    for layer in cache.cache.layers:
        seen, _ = layer.update(tokens, -tokens)
        assert torch.equal(seen.flatten(), 1000.0 * row + torch.arange(start + count))


@pytest.mark.parametrize(
    ("size", "then"),  # all that fits is two rows of 192 tokens, or eight of 64
    [((2, 150), (8, 64)), ((8, 64), (2, 150))],
)
@pytest.mark.parametrize("failing", range(LAYERS))
def test_a_layer_without_memory_leaves_what_the_next_reservation_needs(
    size: tuple[int, int], then: tuple[int, int], failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KVCache(LAYERS, max_rows=8, max_tokens=192, capacity_tokens=512)
    assert cache.reserve(*size)
    for row in range(2):
        prefill(cache, row, 0, 40)
    resize = KVCacheLayer.resize

    def fail(self: KVCacheLayer, new: tuple[int, int]) -> None:
        if self is cache.cache.layers[failing]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        resize(self, new)

    with monkeypatch.context() as patched:
        patched.setattr(KVCacheLayer, "resize", fail)
        with pytest.raises(torch.OutOfMemoryError):
            cache.reserve(*then)
    for rows, tokens in (size, then):
        assert cache.reserve(rows, tokens)
        for row in range(2):
            prefill(cache, row, 40, 20)
        for row in range(2, rows):
            prefill(cache, row, 0, tokens)
        prefill(cache, 0, 60, tokens - 60)


def test_where_twice_as_much_does_not_fit_what_is_needed_does(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(LAYERS, max_rows=8, max_tokens=1024, capacity_tokens=8192)
    assert cache.reserve(1, 64)
    prefill(cache, 0, 0, 40)
    resize, tried = KVCacheLayer.resize, []

    def fail(self: KVCacheLayer, new: tuple[int, int]) -> None:
        if self is cache.cache.layers[-1]:
            tried.append(new)
            if new[0] * new[1] > 320:
                raise torch.OutOfMemoryError("CUDA out of memory")
        resize(self, new)

    monkeypatch.setattr(KVCacheLayer, "resize", fail)
    assert cache.reserve(1, 300)
    assert tried == [(2, 640), (2, 320), (1, 320)]
    prefill(cache, 0, 40, 260)
