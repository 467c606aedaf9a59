"""Attention of a chunk of one prompt on a CPU: to all tokens before the chunk, and causally within it."""

import torch

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
