"""Whether a model's answers may be written in one batch, by trying it: no list of architectures is complete.

A batch is right where the logits of a row are those that the bare model computes. That is tried with a dozen tokens,
and then across every length at which the config says that something changes, as far as the device computes that many
tokens in a moment; beyond that the rules of `length_rules` are what there is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from pipelines.chat.model.length_rules import LengthRules, read_rules
from pipelines.chat.model.model_runner import Chunk, ModelRunner
from pipelines.device.failures import require_device
from pipelines.device.graph_capture import CAPTURES

TRIED_OPERATIONS: Final = {"cpu": 2e11, "cuda": 2e15}  # that trying a threshold may take: seconds
OF_MODELS: Final = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError)
HALF_PRECISION: Final = 0.08  # of the logits' deviation, that rounding may come to
DIFFERS: Final = "its logits in a batch are not those of a single row"


@dataclass(frozen=True, slots=True)
class Batching:
    """How a model's answers may be batched, as found by trying it. With `unbatched_reason` they are written one at a
    time, for this reason."""

    rules: LengthRules
    token_bytes: int = 0  # of keys and values
    by_group: bool = True  # rows of much different length attend apart, and so do the chunks of a prompt
    packs: bool = False  # prompts share a forward pass
    graphs: bool = False  # decode steps are captured as CUDA graphs
    unbatched_reason: str | None = None


@torch.inference_mode()
def find_batching(model: Any, device: torch.device, vocab_size: int, context: int) -> Batching:
    """Try a model on texts of up to `context` tokens, and return how its answers may be batched. Raises errors that do
    not come from batching, such as running out of memory."""
    rules = read_rules(model, context)
    if rules.alone:
        return Batching(rules, _own_token_bytes(model), unbatched_reason=rules.alone)
    why = DIFFERS
    for by_group in (True, False):
        try:
            runner = ModelRunner(model, device, vocab_size, rules, capacity_tokens=2**20)
            runner.by_group = by_group
            if all(
                _same_in_batch(runner, model, length, vocab_size) for length in _lengths(model, device, rules)
            ) and _same_beside_long(runner, vocab_size, _positions(model)):
                counts = rules.long_from is not None or rules.scale_step is not None  # the length of each pass
                packs = not counts and _has_same_logits(_same_when_packed, runner, vocab_size, device)
                graphs = (
                    not counts
                    and device.type in CAPTURES
                    and _has_same_logits(_same_when_captured, runner, vocab_size, device)
                )
                token_bytes = runner.kv_cache.token_bytes()
                runner.kv_cache.clear()  # and graphs: their memory would wait for the garbage collector
                return Batching(rules, token_bytes, by_group, packs, graphs)
        except OF_MODELS as error:
            require_device(error, device)
            why = "its code takes no such batch"
    return Batching(rules, _own_token_bytes(model), unbatched_reason=why)


def _own_token_bytes(model: Any) -> int:
    """Return the bytes of one more token in the cache that the library makes, as windows and states grow no more; 0 for
    a model that takes no such call."""
    tokens = torch.tensor([_tokens(12, 100)], device=next(model.parameters()).device)
    try:
        cache = model(input_ids=tokens, use_cache=True).get("past_key_values")
    except OF_MODELS as error:
        require_device(error, tokens.device)
        return 0
    layers = [layer for layer in getattr(cache, "layers", ()) if not getattr(layer, "is_sliding", False)]
    kept = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    return sum(
        one.numel() // one.shape[-2] * one.element_size() for one in kept if torch.is_tensor(one) and one.dim() == 4
    )


def _lengths(model: Any, device: torch.device, rules: LengthRules) -> list[int]:
    """Return how many tokens to try: a dozen, and just beyond each threshold that is near enough."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    most = min(_positions(model), int(TRIED_OPERATIONS.get(device.type, 2e11) / (4.0 * weights)))
    return [12, *(length + 6 for length in rules.thresholds if length + 6 <= most)]


def _positions(model: Any) -> int:
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31)


def _same_in_batch(runner: ModelRunner, model: Any, count: int, vocab_size: int) -> bool:
    """Return whether a row of so many tokens that decodes beside a shorter one, and is prefilled in two chunks, has the
    logits that it has alone."""
    tokens = _tokens(count, vocab_size)
    device = next(model.parameters()).device
    alone = model(torch.tensor([tokens], device=device)).logits[0, -1].float()
    cache, last = runner.kv_cache, count - 1
    (row, _), (other, _) = cache.begin(None, []), cache.begin(None, [])
    cache.reserve(row, count)
    cache.reserve(other, count)
    half = last // 2
    for chunk in (Chunk(tokens[3:8], other, 0, 5), Chunk(tokens[:half], row, 0, count),
                  Chunk(tokens[half:last], row, half, count)):  # fmt: skip
        runner.prefill([chunk])
    beside = runner.rules.length_range(5) == runner.rules.length_range(last)
    leases, lengths = ([row, other], [last, 5]) if beside else ([row], [last])
    logits = runner.decode([tokens[last], tokens[8]][: len(leases)], leases, lengths)[0]
    cache.release(row)
    cache.release(other)
    return _is_same(runner, logits, alone, vocab_size)


def _same_beside_long(runner: ModelRunner, vocab_size: int, positions: int) -> bool:
    """Return whether a row has the same logits beside one that is much longer, which attends apart from it."""
    tokens, cache = _tokens(12, vocab_size), runner.kv_cache
    (row, _), (long, _) = cache.begin(None, []), cache.begin(None, [])
    cache.reserve(row, 12)
    cache.reserve(long, 1200)
    for lease in (row, long):
        runner.prefill([Chunk(tokens[:11], lease, 0, 11)])
    alone = runner.decode([tokens[11]], [row], [11])[0]
    far = min(1100, positions - 1)
    if runner.rules.length_range(far) != runner.rules.length_range(11):
        far = 11
    beside = runner.decode([tokens[11], tokens[11]], [long, row], [far, 11])[1]
    cache.release(row)
    cache.release(long)
    return _is_same(runner, beside, alone, vocab_size)


def _has_same_logits(
    tried: Callable[[ModelRunner, int], bool], runner: ModelRunner, vocab_size: int, device: torch.device
) -> bool:
    """Return whether what was tried gives the same logits. A model whose code does not take it goes without."""
    try:
        return tried(runner, vocab_size)
    except OF_MODELS as error:
        require_device(error, device)
        return False


def _same_when_packed(runner: ModelRunner, vocab_size: int) -> bool:
    """Return whether two prompts that share a pass, one of which is half computed, have the logits that they have
    alone."""
    tokens, cache = _tokens(80, vocab_size), runner.kv_cache
    leases = [cache.begin(None, [])[0] for _ in range(2)]
    for lease in leases:
        cache.reserve(lease, len(tokens))
    runner.prefill([Chunk(tokens[:40], leases[0], 0, 80)])
    chunks = [Chunk(tokens[40:], leases[0], 40, 80), Chunk(tokens[5:25], leases[1], 0, 20)]
    alone = [runner.prefill([chunk])[0] for chunk in chunks]
    packed = runner.prefill(chunks)
    for lease in leases:
        cache.release(lease)
    return all(_is_same(runner, *pair, vocab_size) for pair in zip(packed, alone, strict=True))


def _same_when_captured(runner: ModelRunner, vocab_size: int) -> bool:
    """Return whether a captured step has the logits of a launched one, for other rows than it was captured for."""
    tokens, cache = _tokens(80, vocab_size), runner.kv_cache
    leases = [cache.begin(None, [])[0] for _ in range(3)]
    lengths = [80, 50, 20]
    for lease, count in zip(leases, lengths, strict=True):
        cache.reserve(lease, count + 2)
        runner.prefill([Chunk(tokens[:count], lease, 0, count)])
    exact = runner.decode(tokens[7:10], leases, lengths)
    runner.use_graphs()
    for _ in range(2):
        runner.decode(tokens[3:6], leases, [length + 1 for length in lengths])
    repeated = runner.decode(tokens[7:10], leases, lengths)
    for lease in leases:
        cache.release(lease)
    return runner.has_captured and all(
        _is_same(runner, *pair, vocab_size) for pair in zip(repeated, exact, strict=True)
    )


def _is_same(runner: ModelRunner, logits: torch.Tensor, expected: torch.Tensor, vocab_size: int) -> bool:
    """Return whether logits are the expected ones but for rounding. In bfloat16, those of a random model of 28 layers
    by two kernels are 0.018 of their deviation apart (the root of the mean of squares; at most 0.07, and more on a
    GPU), and 0.20 where one token's position is off by one."""
    expected = expected[:vocab_size]
    difference = (logits[:vocab_size] - expected) / expected.std()
    if runner.is_float32:
        return bool(difference.abs().max() < 1e-3)
    return bool(difference.square().mean().sqrt() < HALF_PRECISION)


def _tokens(count: int, vocab_size: int) -> list[int]:
    return [7 * i % min(100, vocab_size) for i in range(count)]
