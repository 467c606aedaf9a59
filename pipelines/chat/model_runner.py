"""The model's forward pass over sequences that share a batch: chunked prefill, then one token a row and step."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipelines.chat.kv_cache import CacheWindow, KVCache
from pipelines.chat.kv_pages import PAGE, Lease
from pipelines.chat.length_rules import LengthRules
from pipelines.chat.paged_attention import attend_by_group

PREFILL_CHUNK = {"cpu": 256, "cuda": 2048}  # tokens of prompts between two decode steps of the running rows
Mask = torch.Tensor | Mapping[str, torch.Tensor]


class ModelRunner:
    """Logits of prompts and of decode steps. One thread uses it, in inference mode."""

    def __init__(
        self, model: Any, device: torch.device, vocab_size: int, rules: LengthRules, capacity_tokens: int
    ) -> None:
        self._model, self._device, self._vocab_size, self.rules = model, device, vocab_size, rules
        config = model.config.get_text_config()
        self._eager = config._attn_implementation == "eager"
        self._dtype = model.dtype
        self.is_float32 = self._dtype == torch.float32
        self.prefill_chunk = PREFILL_CHUNK.get(device.type, 256)
        self.kv_cache = KVCache(config.num_hidden_layers, capacity_tokens, device)
        self.by_group = True  # whether attention gathers keys: rows of much different length, and chunks, attend apart
        attend_by_group(config._attn_implementation)

    def prefill(self, tokens: Sequence[int], lease: Lease, start: int, end: int) -> torch.Tensor:
        """Write a sequence's tokens from position `start` on, of a text that has `end` tokens. Returns the logits
        [1, vocabulary] behind the last."""
        count = len(tokens)
        leads = self._leads(start + count, end)
        groups = self.kv_cache.group([lease], [start + count], apart=False)
        at = torch.arange(start, start + count, device=self._device)
        slots = self._slots([lease] * count, range(start, start + count))
        causal = self.by_group and start > 0 and not leads and self.rules.layer_types == {"full_attention"}
        self.kv_cache.set_window(CacheWindow(slots, groups, start, skip=len(leads), causal=causal))
        ids = torch.tensor([[*(tokens[0] for _ in leads), *tokens]], device=self._device)
        positions = torch.cat([at.new_tensor(leads), at])[None]
        return self._forward(ids, positions, torch.cat([at[:1].expand(len(leads)), at])[None])

    def decode(self, tokens: Sequence[int], leases: Sequence[Lease], lengths: Sequence[int]) -> torch.Tensor:
        """Write one more token of each row, at positions `lengths`, the longest first. Returns [rows, vocabulary]."""
        positions = torch.tensor(lengths, device=self._device)
        groups = self.kv_cache.group(leases, [length + 1 for length in lengths], apart=self.by_group)
        self.kv_cache.set_window(CacheWindow(self._slots(leases, lengths), groups, lengths[0]))
        return self._forward(torch.tensor(tokens, device=self._device)[:, None], positions[:, None], positions[:, None])

    def _leads(self, written: int, end: int) -> list[int]:
        """Return the position of a token in front that nothing reads: the library chooses a rotary embedding by the
        highest position of a pass, and the first passes over a long text end before it is long."""
        long_from = self.rules.long_from
        return [long_from] if long_from is not None and written <= long_from < end else []

    def _slots(self, leases: Sequence[Lease], places: Sequence[int]) -> torch.Tensor:
        pairs = zip(leases, places, strict=True)
        slots = [lease.pages[place // PAGE] * PAGE + place % PAGE for lease, place in pairs]
        return torch.tensor(slots, device=self._device)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
        """Return logits [rows, vocabulary]. All are [rows, tokens]; tokens attend to positions up to what they see."""
        logits: torch.Tensor = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._mask(sees),
            past_key_values=self.kv_cache.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        logits = logits.float()
        logits[:, self._vocab_size :] = -torch.inf  # padding of the output layer stands for no token
        return logits

    def _mask(self, sees: torch.Tensor) -> Mask:
        """Return what each token attends to, [rows, 1, tokens, length]; by kind of layer if there are several."""
        rules = self.rules
        keys = torch.arange(self.kv_cache.window_length, device=self._device)
        here = sees[:, None, :, None]
        causal = keys <= here
        masks = {"full_attention": causal}
        if rules.sliding_window is not None:
            masks["sliding_attention"] = causal & (keys > here - rules.sliding_window)
        if rules.chunk is not None:
            masks["chunked_attention"] = causal & (keys // rules.chunk == here // rules.chunk)
        shown = {kind: self._attention_mask(mask) for kind, mask in masks.items()}
        return shown if len(rules.layer_types) > 1 else shown[next(iter(rules.layer_types))]

    def _attention_mask(self, visible: torch.Tensor) -> torch.Tensor:
        """Return a mask as the attention in use takes it: bools, or the numbers that eager attention adds to the
        scores."""
        if not self._eager:
            return visible
        return torch.zeros(visible.shape, dtype=self._dtype, device=self._device).masked_fill_(
            ~visible, torch.finfo(self._dtype).min
        )
