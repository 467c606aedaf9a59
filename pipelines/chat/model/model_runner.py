"""The model's forward pass over sequences that share a batch: chunked prefill, then one token a row and step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from pipelines.chat.model.decode_graphs import DecodeGraphs, StepInputs, graph_bytes
from pipelines.chat.model.four_bit_linear import FourBitLinear
from pipelines.chat.model.kv_cache import CacheWindow, KVCache, split_by_length
from pipelines.chat.model.kv_pages import PAGE, Lease
from pipelines.chat.model.length_rules import LengthRules
from pipelines.chat.model.paged_attention import attend_by_group

PREFILL_CHUNK = {"cpu": 256, "cuda": 2048}  # tokens of prompts between two decode steps of the running rows
PACKED_SCORES = {"cpu": 2**17, "cuda": 2**22}  # of a pass that prompts share
Mask = torch.Tensor | Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of a text that has `end` of them, from position `start` on, and the pages that they go to."""

    tokens: Sequence[int]
    lease: Lease
    start: int
    end: int

    @property
    def stop(self) -> int:
        """Return the position behind the last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class _AttentionPositions:
    """What tokens attend to: positions up to `sees` [rows, tokens], among keys at the positions `keys` [length]. Where
    several texts share a row, `same` [tokens, length] says which keys are of a token's own."""

    sees: torch.Tensor
    keys: torch.Tensor
    same: torch.Tensor | None = None


class ModelRunner:
    """Logits of prompts and of decode steps. One thread uses it, in inference mode."""

    def __init__(
        self, model: Any, device: torch.device, vocab_size: int, rules: LengthRules, capacity_tokens: int
    ) -> None:
        self._model, self._device, self._vocab_size, self.rules = model, device, vocab_size, rules
        config = model.config.get_text_config()
        self._eager = config._attn_implementation == "eager"
        self._dtype = model.dtype
        self._four_bits = any(isinstance(layer, FourBitLinear) for layer in model.modules())
        self.is_float32 = self._dtype == torch.float32 and not self._four_bits  # and so is its rounding
        self.prefill_chunk = PREFILL_CHUNK.get(device.type, 256)
        self.kv_cache = KVCache(config.num_hidden_layers, capacity_tokens, device)
        self.by_group = True  # whether attention gathers keys: rows of much different length, and chunks, attend apart
        self._graphs: DecodeGraphs | None = None
        attend_by_group(config._attn_implementation)

    def use_graphs(self, rows: int = 1) -> None:
        """Capture decode steps from now on, of so many rows at most."""
        self._graphs = DecodeGraphs(self._decode, self.kv_cache, self._device)
        self.kv_cache.spare_bytes = graph_bytes(len(self.kv_cache.cache.layers), rows, self._vocab_size)

    def give_up_graphs(self) -> bool:
        """Free the memory of captured steps. False if there are none."""
        return self._graphs is not None and self._graphs.give_up()

    @property
    def has_captured(self) -> bool:
        """Return whether a decode step is captured."""
        return self._graphs is not None and not self._graphs.is_empty

    def prefill(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Compute the tokens of some texts in one forward pass, and write their keys and values to the cache. Returns
        the logits [chunks, vocabulary] behind the last token of each."""
        if len(chunks) > 1:
            return self._prefill_packed(chunks)
        (chunk,) = chunks
        leads = self._leading_positions(chunk)
        groups = self.kv_cache.group([chunk.lease], [chunk.stop], [(0, 1)])
        at = torch.arange(chunk.start, chunk.stop, device=self._device)
        causal = self.by_group and chunk.start > 0 and not leads and self.rules.layer_types == {"full_attention"}
        self.kv_cache.set_window(CacheWindow(self._slots(chunks), groups, chunk.start, skip=len(leads), causal=causal))
        ids = torch.tensor([[*(chunk.tokens[0] for _ in leads), *chunk.tokens]], device=self._device)
        positions = torch.cat([at.new_tensor(leads), at])[None]
        sees = torch.cat([at[:1].expand(len(leads)), at])[None]
        return self._forward(ids, positions, _AttentionPositions(sees, self._key_positions(groups[0].length)))

    def decode(self, tokens: Sequence[int], leases: Sequence[Lease], lengths: Sequence[int]) -> torch.Tensor:
        """Compute one more token of each row, at positions `lengths`, the longest row first. Returns the logits [rows,
        vocabulary]."""
        written = [length + 1 for length in lengths]
        bounds = split_by_length(written, apart=self.by_group)
        slots = [lease.slot(length) for lease, length in zip(leases, lengths, strict=True)]
        if self._graphs is not None:
            logits = self._graphs.decode((tokens, lengths, slots), leases, bounds)
            if logits is not None:
                return logits
        groups = self.kv_cache.group(leases, written, bounds)
        ids, positions, places = torch.tensor([tokens, lengths, slots], device=self._device).unbind()
        return self._decode(StepInputs(ids, positions, places, groups, lengths[0]))

    def _decode(self, inputs: StepInputs) -> torch.Tensor:
        self.kv_cache.set_window(CacheWindow(inputs.slots, inputs.groups, inputs.start))
        positions = inputs.positions[:, None]
        keys = self._key_positions(self.kv_cache.window_length)
        return self._forward(inputs.ids[:, None], positions, _AttentionPositions(positions, keys))

    def _prefill_packed(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Compute the chunks as one row, in which tokens attend to those of their own text."""
        group = self.kv_cache.pack([chunk.lease for chunk in chunks], [chunk.stop for chunk in chunks])
        self.kv_cache.set_window(CacheWindow(self._slots(chunks), (group,), start=0))
        own = torch.tensor([number for number, chunk in enumerate(chunks) for _ in chunk.tokens], device=self._device)
        places = [
            (number, place) for number, chunk in enumerate(chunks) for place in range(-(-chunk.stop // PAGE) * PAGE)
        ]
        owners, keys = torch.tensor(places, device=self._device).unbind(dim=1)
        ids = torch.tensor([[token for chunk in chunks for token in chunk.tokens]], device=self._device)
        at = torch.cat([torch.arange(chunk.start, chunk.stop, device=self._device) for chunk in chunks])[None]
        last = torch.tensor([*accumulate(len(chunk.tokens) for chunk in chunks)], device=self._device) - 1
        return self._forward(ids, at, _AttentionPositions(at, keys, same=own[:, None] == owners), last)

    def _leading_positions(self, chunk: Chunk) -> list[int]:
        """Return the position of a token in front that nothing reads: the library chooses a rotary embedding by the
        highest position of a pass, and the first passes over a long text end before it is long. And a prompt's token
        that is left alone, as behind a prefix from the cache, is no step of decoding to layers of four bits."""
        long_from = self.rules.long_from
        if long_from is not None and chunk.stop <= long_from < chunk.end:
            return [long_from]
        return [chunk.start] if self._four_bits and len(chunk.tokens) == 1 else []

    def _slots(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        slots = [chunk.lease.slot(place) for chunk in chunks for place in range(chunk.start, chunk.stop)]
        return torch.tensor(slots, device=self._device)

    def _key_positions(self, length: int) -> torch.Tensor:
        return torch.arange(length, device=self._device)

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, seen: _AttentionPositions, keep: int | torch.Tensor = 1
    ) -> torch.Tensor:
        """Return logits [rows, vocabulary] of each row's last token, or of one row's tokens `keep`. All others are
        [rows, tokens]."""
        logits: torch.Tensor = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._mask(seen),
            past_key_values=self.kv_cache.cache,
            use_cache=True,
            logits_to_keep=keep,
        ).logits
        logits = (logits[:, -1] if isinstance(keep, int) else logits[0]).float()
        logits[:, self._vocab_size :] = -torch.inf  # padding of the output layer stands for no token
        return logits

    def _mask(self, seen: _AttentionPositions) -> Mask:
        """Return what each token attends to, [rows, 1, tokens, length]; by kind of layer if there are several."""
        rules, keys = self.rules, seen.keys
        here = seen.sees[:, None, :, None]
        causal = keys <= here
        if seen.same is not None:
            causal &= seen.same
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
