"""A chunk's attention in two parts is the attention with a causal mask."""

import pytest
import torch

from pipelines.chat.model.paged_attention import attend_in_chunk


@pytest.mark.parametrize("key_heads", [1, 2, 6])
@pytest.mark.parametrize(("start", "tokens"), [(1, 5), (40, 1), (37, 32), (600, 256)])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_it_is_that_with_a_mask(key_heads: int, start: int, tokens: int, scaling: float | None) -> None:
    noise = torch.Generator().manual_seed(start)
    end, padded = start + tokens, start + tokens + 7  # beyond the chunk is what a page has room for
    query = torch.randn(1, tokens, 6, 16, generator=noise).transpose(1, 2)
    key, value = (3 * torch.randn(1, padded, key_heads, 16, generator=noise).transpose(1, 2) for _ in range(2))
    mask = torch.arange(padded) <= torch.arange(start, end)[:, None]
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True
    )
    found = attend_in_chunk(query, key, value, start, scaling)
    assert found.shape == (1, tokens, 6, 16)
    torch.testing.assert_close(found, expected.transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_in_bfloat16_it_is_as_close_as_that_with_a_mask() -> None:
    noise = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, heads, 300, 16, generator=noise) for heads in (4, 2, 2))
    query = query[:, :, 200:]
    mask = torch.arange(300) <= torch.arange(200, 300)[:, None]
    exact = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    found = attend_in_chunk(query.bfloat16(), key.bfloat16(), value.bfloat16(), 200, None)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact.transpose(1, 2), atol=0.03, rtol=0.03)
