"""The model's forward pass over sequences that share a batch: chunked prefill, then one token a row and step."""

from collections.abc import Mapping

import torch

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.kv_cache import CacheWindow, KVCache
from pipelines.device.failures import is_device_error, is_out_of_memory

PREFILL_CHUNK = {"cpu": 256, "cuda": 2048}  # tokens of prompts between two decode steps of the running rows
Mask = torch.Tensor | Mapping[str, torch.Tensor]


class ModelRunner:
    """Logits of prompts and of decode steps. One thread uses it, in inference mode."""

    def __init__(self, checkpoint: ChatCheckpoint, capacity_tokens: int) -> None:
        self._model = checkpoint.model
        self._device = checkpoint.device
        config = self._model.config.get_text_config()
        self._layer_types = set(getattr(config, "layer_types", None) or ())
        self._sliding_window = getattr(config, "sliding_window", None)
        self._eager = self._model.config._attn_implementation == "eager"
        self._dtype = self._model.dtype
        self._vocab_size = checkpoint.tokens.vocab_size
        self.is_float32 = self._dtype == torch.float32
        self.prefill_chunk = PREFILL_CHUNK.get(checkpoint.device.type, 256)
        max_rows = checkpoint.spec.max_batch
        self.kv_cache = KVCache(config.num_hidden_layers, max_rows, checkpoint.context, capacity_tokens)

    def prefill(self, tokens: list[int], row: int, start: int) -> torch.Tensor:
        """Write a sequence's tokens from position `start` on. Returns the logits [1, vocabulary] behind the last."""
        count = len(tokens)
        length = self.kv_cache.attention_length(start + count)
        self.kv_cache.set_window(CacheWindow(length, row=row, start=start, count=count))
        positions = torch.arange(start, start + count, device=self._device)
        return self._forward(torch.tensor([tokens], device=self._device), positions[None], length)

    def decode(self, tokens: list[int], lengths: list[int]) -> torch.Tensor:
        """Decode one more token for rows 0 to len(tokens) - 1, at positions `lengths`. Returns logits [rows,
        vocabulary]."""
        length = self.kv_cache.attention_length(max(lengths) + 1)
        positions = torch.tensor(lengths, device=self._device)
        self.kv_cache.set_window(CacheWindow(length, rows=len(tokens), positions=positions))
        return self._forward(torch.tensor(tokens, device=self._device)[:, None], positions[:, None], length)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Run a forward pass, and return the logits of the last position. `ids` and `positions` are [rows, tokens];
        attention covers the first `length` positions of the cache."""
        logits: torch.Tensor = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._mask(positions, length),
            past_key_values=self.kv_cache.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        logits = logits.float()
        logits[:, self._vocab_size :] = -torch.inf  # padding of the output layer stands for no token
        return logits

    def _mask(self, positions: torch.Tensor, length: int) -> Mask:
        """Return the mask of the first `length` positions that each token attends to, [rows, 1, tokens, length]; by
        layer type."""
        keys = torch.arange(length, device=self._device)
        causal = keys <= positions[:, None, :, None]
        if self._sliding_window is None:
            return self._attention_mask(causal)
        sliding = causal & (keys > positions[:, None, :, None] - self._sliding_window)
        if not self._layer_types:
            return self._attention_mask(sliding)
        return {"full_attention": self._attention_mask(causal), "sliding_attention": self._attention_mask(sliding)}

    def _attention_mask(self, visible: torch.Tensor) -> torch.Tensor:
        """Return a mask as the attention in use takes it: bools, or the numbers that eager attention adds to the
        scores."""
        if not self._eager:
            return visible
        return torch.zeros(visible.shape, dtype=self._dtype, device=self._device).masked_fill_(
            ~visible, torch.finfo(self._dtype).min
        )


def batched_token_bytes(checkpoint: ChatCheckpoint) -> int | None:
    """Return the bytes of a token in the KV cache, or None for a model whose logits in a batch differ from those of a
    single row.

    Tested by running the model, since no list of architectures is complete. Call it in inference mode.
    """
    runner = ModelRunner(checkpoint, capacity_tokens=2**16)
    vocab_size = checkpoint.tokens.vocab_size
    tokens = [7 * i % min(100, vocab_size) for i in range(12)]
    try:
        alone = checkpoint.model(torch.tensor([tokens], device=checkpoint.device)).logits[0, -1].float()
        runner.kv_cache.reserve(2, len(tokens))
        runner.prefill(tokens[3:8], row=0, start=0)
        runner.prefill(tokens[:6], row=1, start=0)
        runner.prefill(tokens[6:11], row=1, start=6)
        batched = runner.decode([tokens[8], tokens[11]], [5, 11])[1]
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
        if is_out_of_memory(error) or is_device_error(error):
            raise  # which says nothing about the model
        return None  # it takes no such inputs
    difference = (batched[:vocab_size] - alone[:vocab_size]).abs().max() / alone[:vocab_size].std()
    agrees = bool(difference < (1e-3 if runner.is_float32 else 0.1))
    return runner.kv_cache.token_bytes() if agrees else None
