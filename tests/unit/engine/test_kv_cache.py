"""The KV cache in pages: who has which, what stays, and what is promised where the device has no memory."""

import random
from collections.abc import Iterator

import pytest
import torch

from pipelines.chat.model.kv_cache import CacheWindow, KVCache, KVCacheLayer, split_by_length
from pipelines.chat.model.kv_pages import PAGE, Lease

LAYERS = 3


def prefill(cache: KVCache, lease: Lease, start: int, tokens: list[int]) -> Iterator[list[float]]:
    """Write tokens from `start` on, as numbers; what each layer attends to."""
    end = start + len(tokens)
    slots = torch.tensor([lease.slot(place) for place in range(start, end)])
    cache.set_window(CacheWindow(slots, cache.group([lease], [end], [(0, 1)]), start))
    states = torch.tensor(tokens, dtype=torch.float32).reshape(1, 1, -1, 1)
    for layer in cache.cache.layers:
        keys, values = layer.update(states, -states)
        assert torch.equal(keys, -values)
        yield keys.flatten()[:end].tolist()


def test_each_sequence_reads_what_it_wrote_and_what_it_shares() -> None:
    """Beginnings that are alike, ends that are not, in a cache that is always nearly full."""
    rng = random.Random(3)
    cache = KVCache(LAYERS, capacity_tokens=20 * PAGE)
    running: list[tuple[Lease, list[int]]] = []
    shared = 0
    for _ in range(300):
        beginning = [rng.randrange(3)] * PAGE * rng.randrange(4)
        tokens = [*beginning, *(rng.randrange(100) for _ in range(1 + rng.randrange(3 * PAGE)))]
        lease, cached = cache.begin("key", tokens)
        while not cache.reserve(lease, len(tokens)):
            cache.release(running.pop(rng.randrange(len(running)))[0])
        for seen in prefill(cache, lease, cached, tokens[cached:]):
            assert seen == tokens
        cache.share(lease, tokens, len(tokens))
        running.append((lease, tokens))
        shared += cached
        assert cache.used_tokens <= 20 * PAGE
    assert shared > 50 * PAGE
    for lease, _ in running:
        cache.release(lease)
    assert cache.used_tokens == 0


def test_nobody_finds_what_another_scope_has_computed() -> None:
    cache = KVCache(0, capacity_tokens=20 * PAGE)
    tokens = list(range(4 * PAGE))
    lease, _ = cache.begin("mine", tokens)
    assert cache.reserve(lease, len(tokens))
    cache.share(lease, tokens, len(tokens))
    assert cache.begin("mine", tokens)[1] == 3 * PAGE, "the last token is computed: its logits are needed"
    assert cache.begin("mine", [*tokens, 0])[1] == 4 * PAGE
    assert cache.begin("mine", [*tokens[:PAGE], 5, *tokens[PAGE:]])[1] == PAGE
    assert cache.begin("another", tokens)[1] == 0


def test_the_longest_unused_pages_go_first() -> None:
    cache = KVCache(0, capacity_tokens=4 * PAGE)
    texts = [[text] * (2 * PAGE + 1) for text in range(3)]
    for text in texts[:2]:
        lease, _ = cache.begin("key", text)
        assert cache.reserve(lease, 2 * PAGE)
        cache.share(lease, text, 2 * PAGE)
        cache.release(lease)
    lease, cached = cache.begin("key", texts[0])
    cache.release(lease)
    assert cached == 2 * PAGE
    assert cache.reserve(cache.begin("key", texts[2])[0], 2 * PAGE)
    assert [cache.begin("key", text)[1] for text in texts] == [2 * PAGE, 0, 0]


@pytest.mark.parametrize("failing", range(LAYERS))
def test_where_a_layer_has_no_memory_to_grow_the_others_go_on_with_what_is_there(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KVCache(LAYERS, capacity_tokens=64 * PAGE)
    (first, _), (second, _) = cache.begin("a", []), cache.begin("b", [])
    assert cache.reserve(first, 2 * PAGE)
    assert all(seen == [7] * PAGE for seen in prefill(cache, first, 0, [7] * PAGE))
    resize = KVCacheLayer.resize

    def fail(self: KVCacheLayer, pages: int) -> None:
        if self is cache.cache.layers[failing]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        resize(self, pages)

    with monkeypatch.context() as patched:
        patched.setattr(KVCacheLayer, "resize", fail)
        assert not cache.reserve(second, 3 * PAGE)
    assert all(seen == [7] * PAGE + [8] * PAGE for seen in prefill(cache, first, PAGE, [8] * PAGE))
    cache.release(first)
    cache.release(second)
    assert cache.reserve(second, 2 * PAGE)
    assert not cache.reserve(second, 3 * PAGE), "until nothing runs, there is no more than the device had"
    cache.release(second)
    cache.set_capacity(64 * PAGE)
    assert cache.reserve(second, 9 * PAGE)
    assert all(seen == [9] * 9 * PAGE for seen in prefill(cache, second, 0, [9] * 9 * PAGE))


def test_where_twice_as_much_does_not_fit_what_is_needed_does(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(LAYERS, capacity_tokens=256 * PAGE)
    lease, _ = cache.begin("a", [])
    assert cache.reserve(lease, 8 * PAGE)
    list(prefill(cache, lease, 0, [1] * PAGE))
    resize, tried = KVCacheLayer.resize, list[int]()

    def fail(self: KVCacheLayer, pages: int) -> None:
        if self is cache.cache.layers[-1]:
            tried.append(pages)
            if pages > 12:
                raise torch.OutOfMemoryError("CUDA out of memory")
        resize(self, pages)

    monkeypatch.setattr(KVCacheLayer, "resize", fail)
    assert cache.reserve(lease, 10 * PAGE)
    assert tried == [16, 10]
    assert all(seen == [1] * PAGE + [2] * 9 * PAGE for seen in prefill(cache, lease, PAGE, [2] * 9 * PAGE))


def test_rows_of_much_different_length_are_apart() -> None:
    cache = KVCache(0, capacity_tokens=2**20)
    lengths = [16_000, 9_000, 700, 500, 200, 10]
    leases = [cache.begin(None, [])[0] for _ in lengths]
    for lease, length in zip(leases, lengths, strict=True):
        assert cache.reserve(lease, length)
    groups = cache.group(leases, lengths, split_by_length(lengths, apart=True))
    assert [(group.first, group.end) for group in groups] == [(0, 2), (2, 4), (4, 6)]
    assert split_by_length(lengths, apart=False) == [(0, 6)]


def test_prompts_of_one_pass_have_their_pages_one_after_another() -> None:
    cache = KVCache(0, capacity_tokens=2**20)
    leases = [cache.begin(None, [])[0] for _ in range(3)]
    for lease, length in zip(leases, (70, 10, 40), strict=True):
        assert cache.reserve(lease, length)
    packed = cache.pack(leases, [33, 10, 40])
    assert packed.table is not None
    assert packed.table.tolist() == [*leases[0].pages[:2], *leases[1].pages, *leases[2].pages]
    assert (packed.first, packed.end, packed.length) == (0, 1, 5 * PAGE)
