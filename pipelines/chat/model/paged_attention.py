"""Attention over rows of much different length: group by group, so that a long row does not make the others as long;
and over a chunk of one prompt, without a mask where the device has a kernel for it. Heads that share keys are folded
into one.

transformers asks a registry for the attention of a model, by name. What is registered there before calls the same
function for every group of rows; for all other calls, such as those of `generate`, it is the function itself.

Why not the library's own paged attention (5.23): without flash attention it compares every token of a step with every
token in the cache, and masks what belongs to other rows: 32 rows cost 32 times the products. Its cache belongs to its
scheduler, which samples without seeds, grammars or penalties, and shares what was computed between all callers.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipelines.chat.model.kv_cache import KVCacheLayer

flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def attend_in_chunk(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, start: int, scaling: float | None
) -> torch.Tensor:
    """Return the attention [1, tokens, heads, head size] of queries [1, heads, tokens, head size] that begin at
    position `start`, to keys and values [1, key heads, length, head size].

    In two parts, merged by their log-sum-exps (Flash-Decoding; Dao et al. 2023). With a mask, the kernel computes what
    the mask hides, and the library repeats the keys for each head of their group: at 12,000 tokens, half as much again.
    """
    _, heads, tokens, size = query.shape
    key_heads, end = key.shape[1], start + tokens
    within, within_lse = flash_attention(
        query, *(_repeat_heads(states[:, :, start:end], heads) for states in (key, value)), 0.0, True, scale=scaling
    )
    folded = query.reshape(1, key_heads, -1, size)  # heads of a group see the same keys, and all of those before
    before, before_lse = flash_attention(folded, key[:, :, :start], value[:, :, :start], 0.0, False, scale=scaling)
    share = torch.sigmoid(within_lse - before_lse.reshape(within_lse.shape))[..., None].to(within.dtype)
    return torch.lerp(before.reshape(within.shape), within, share).transpose(1, 2)


def _repeat_heads(states: torch.Tensor, heads: int) -> torch.Tensor:
    return states.repeat_interleave(heads // states.shape[1], dim=1)


Attention = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def attend_by_group(attention: str) -> None:
    """Replace transformers' attention of this name, such as "sdpa", by one that computes each group of rows apart.
    Called again for the same name, it does nothing."""
    registered = ALL_ATTENTION_FUNCTIONS.get(attention)
    if not getattr(registered, "by_group", False) and (registered is not None or attention == "eager"):
        AttentionInterface.register(attention, _by_group(registered, is_sdpa=attention == "sdpa"))


def _by_group(registered: Attention | None, *, is_sdpa: bool) -> Attention:
    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *arguments: Any,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        attention = registered or _eager_attention(module)
        layer = getattr(key, "paged_layer", None)
        if not isinstance(layer, KVCacheLayer) or attention_mask is None:
            return attention(module, query, key, value, attention_mask, *arguments, **options)
        plain = is_sdpa and not arguments and options.get("position_bias") is None
        scaling, window = options.get("scaling"), layer.window
        outputs = []
        for group in window.groups:
            rows = slice(group.first, group.end)
            keys, values = (key, value) if window.is_whole else layer.gather(group)
            if plain and window.causal and query.device.type == "cpu" and keys.shape == values.shape:
                return attend_in_chunk(query, keys, values, window.start, scaling), None
            mask = attention_mask[rows, ..., : group.length]
            if plain and mask.dtype == torch.bool and query.shape[1] > keys.shape[1]:
                outputs.append(_attend_folded(query[rows], keys, values, mask, scaling))
            else:
                outputs.append(attention(module, query[rows], keys, values, mask, *arguments, **options)[0])
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), None

    attend.by_group = True  # type: ignore[attr-defined]
    return attend


def _attend_folded(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Return the attention [rows, tokens, heads, head size] of queries [rows, heads, tokens, head size] to keys and
    values of fewer heads, as queries of more tokens. The library repeats keys and values for each head that shares
    them, in some versions for single tokens too, and that takes longer than the attention."""
    rows, heads, tokens, size = query.shape
    key_heads = key.shape[1]
    if tokens > 1:
        mask = mask.repeat(1, 1, heads // key_heads, 1)
    folded = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(rows, key_heads, -1, size), key, value, attn_mask=mask, scale=scaling
    )
    return folded.reshape(rows, heads, tokens, -1).transpose(1, 2)


def _eager_attention(module: torch.nn.Module) -> Attention:
    """Return the model's own, which is in no registry."""
    for kind in type(module).__mro__:
        if found := getattr(sys.modules[kind.__module__], "eager_attention_forward", None):
            attention: Attention = found
            return attention
    raise TypeError(f"{type(module).__name__} has no eager attention")
