"""The model's forward pass over rows that share a batch: prompts piece by piece, then every row a token a step."""

from collections.abc import Mapping

import torch

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.kv_cache import Slots, Window

PROMPT_PIECE = {"cpu": 256, "cuda": 2048}  # tokens of a prompt between two steps of the rows that are already there
Mask = torch.Tensor | Mapping[str, torch.Tensor]


class BatchForward:
    """Logits of prompts and of rows. One thread uses it, in inference mode."""

    def __init__(self, checkpoint: ChatCheckpoint, most_places: int) -> None:
        self._model = checkpoint.model
        self._device = checkpoint.device
        config = self._model.config.get_text_config()
        self._kinds = set(getattr(config, "layer_types", None) or ())
        self._sliding = getattr(config, "sliding_window", None)
        self._eager = self._model.config._attn_implementation == "eager"
        self._dtype = self._model.dtype
        self._vocabulary = checkpoint.tokens.count
        self.exact = self._dtype == torch.float32
        self.piece = PROMPT_PIECE.get(checkpoint.device.type, 256)
        most_rows = checkpoint.spec.max_batch
        self.slots = Slots(config.num_hidden_layers, most_rows, checkpoint.context, most_places)

    def prompt(self, tokens: list[int], slot: int, start: int) -> torch.Tensor:
        """Tokens `start` and on of a row, into its slot. Returns the logits [1, vocabulary] behind the last one."""
        count = len(tokens)
        length = self.slots.length(start + count)
        self.slots.look(Window(length, slot=slot, start=start, count=count))
        places = torch.arange(start, start + count, device=self._device)
        return self._run(torch.tensor([tokens], device=self._device), places[None], places[None], length)

    def step(self, tokens: list[int], lengths: list[int]) -> torch.Tensor:
        """One more token for slots 0 to rows - 1, behind their `lengths`. Returns logits [rows, vocabulary]."""
        length = self.slots.length(max(lengths) + 1)
        places = torch.tensor(lengths, device=self._device)
        self.slots.look(Window(length, rows=len(tokens), places=places))
        return self._run(torch.tensor(tokens, device=self._device)[:, None], places[:, None], places[:, None], length)

    def _run(self, ids: torch.Tensor, positions: torch.Tensor, places: torch.Tensor, length: int) -> torch.Tensor:
        logits: torch.Tensor = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._mask(places, length),
            past_key_values=self.slots.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        logits = logits.float()
        logits[:, self._vocabulary :] = -torch.inf  # rows of the output layer that stand for no token
        return logits

    def _mask(self, places: torch.Tensor, length: int) -> Mask:
        """Which of the first `length` places each token sees, [rows, 1, tokens, length]; by kind of layer."""
        seen = torch.arange(length, device=self._device)
        full = seen <= places[:, None, :, None]
        if self._sliding is None:
            return self._attend(full)
        near = full & (seen > places[:, None, :, None] - self._sliding)
        if not self._kinds:
            return self._attend(near)
        return {"full_attention": self._attend(full), "sliding_attention": self._attend(near)}

    def _attend(self, seen: torch.Tensor) -> torch.Tensor:
        """As the attention in use wants it: true for what is seen, or what is added to the scores."""
        if not self._eager:
            return seen
        return torch.zeros(seen.shape, dtype=self._dtype, device=self._device).masked_fill_(
            ~seen, torch.finfo(self._dtype).min
        )


def batched_token_bytes(checkpoint: ChatCheckpoint) -> int | None:
    """What a token takes in a slot, or None where the model does not say the same in slots as alone.

    That is tried, as no list of architectures is ever complete. To be called in inference mode.
    """
    forward = BatchForward(checkpoint, most_places=2**16)
    tokens = [7 * i % min(100, checkpoint.tokens.count) for i in range(12)]
    try:
        alone = checkpoint.model(torch.tensor([tokens], device=checkpoint.device)).logits[0, -1].float()
        forward.slots.reserve(2, len(tokens))
        forward.prompt(tokens[3:8], slot=0, start=0)
        forward.prompt(tokens[:6], slot=1, start=0)
        forward.prompt(tokens[6:11], slot=1, start=6)
        together = forward.step([tokens[8], tokens[11]], [5, 11])[1]
    except torch.OutOfMemoryError:
        raise  # that says nothing of the model
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError):  # it takes no such inputs
        return None
    count = checkpoint.tokens.count
    difference = (together[:count] - alone[:count]).abs().max() / alone[:count].std()
    agrees = bool(difference < (1e-3 if forward.exact else 0.1))
    return forward.slots.token_bytes() if agrees else None
