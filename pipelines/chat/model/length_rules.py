"""What a config says that depends on how long a text is, and what follows from it for texts that share a batch.

Three things do. A mask reaches back over a window or to the start of a chunk. A rotary embedding has one set of
frequencies for short texts and another for long ones, and what was computed with the first is of no use to the second.
A layer's scale steps up every so many tokens, and the library counts them for the whole batch. Rows on two sides of
such a step are in two regimes, and decode apart. Any other kind of layer or embedding is one that nothing here knows:
its answers are written one at a time, by transformers' own `generate`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

MASKED: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
STATELESS: Final = frozenset({"moe", "sparse", "dense", "mlp"})  # layers that look at one token alone
BY_LENGTH: Final = ("longrope", "dynamic")  # kinds of rotary embedding


@dataclass(frozen=True, slots=True)
class LengthRules:
    """The lengths at which a model computes a text in another way, such as by a sliding window, in tokens. None where
    it has no such length."""

    layer_types: frozenset[str] = frozenset({"full_attention"})
    sliding_window: int | None = None
    chunk: int | None = None
    long_from: int | None = None  # texts of more tokens have another rotary embedding, from their first token on
    scale_step: int | None = None  # every so many positions a layer's scale is another
    alone: str | None = None  # why answers can't share a batch

    def length_range(self, position: int) -> int:
        """Return the number of the length range of a text whose last token is at `position`: only texts of equal
        numbers may share a forward pass."""
        if self.long_from is not None:
            return int(position >= self.long_from)
        return (position + 1) // self.scale_step if self.scale_step else 0

    def must_recompute(self, position: int) -> bool:
        """Return whether a text that grows to `position` has to be computed again from its first token on."""
        return position == self.long_from

    @property
    def thresholds(self) -> tuple[int, ...]:
        """Return the lengths beyond which something changes, the shortest first."""
        named = (self.sliding_window, self.chunk, self.long_from, self.scale_step)
        return tuple(sorted({length for length in named if length}))


def read_rules(model: Any, context: int = 2**62) -> LengthRules:
    """Return the rules of a model of transformers, by its config, for texts of up to `context` tokens."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    types = frozenset(getattr(config, "layer_types", None) or (["sliding_attention" if window else "full_attention"]))
    ropes = list(_ropes(config))
    long_from = min((int(rope["original_max_position_embeddings"]) for rope in ropes if _kind(rope) == "longrope"),
                    default=None)  # fmt: skip
    tuned = bool(getattr(config, "attn_temperature_tuning", False))
    return LengthRules(
        layer_types=types - STATELESS,
        sliding_window=window if "sliding_attention" in types else None,
        chunk=getattr(config, "attention_chunk_size", None) if "chunked_attention" in types else None,
        long_from=long_from,
        scale_step=int(config.floor_scale) if tuned and getattr(config, "floor_scale", None) else None,
        alone=_why_alone(model, types, _used_kinds(model) or {_kind(rope) for rope in ropes}, context),
    )


def _why_alone(model: Any, types: frozenset[str], ropes: set[str], context: int) -> str | None:
    if unknown := sorted(types - MASKED - STATELESS):
        return f"its layers of the kind {', '.join(unknown)} keep more than keys and values"
    trained = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 0
    if "dynamic" in ropes and context > trained:
        return "its rotary embedding (dynamic) changes with every token beyond the length that it was trained for"
    # `generate` computes a text anew where it becomes long only for the models that say so
    if "longrope" in ropes and "prepare_inputs_for_generation" not in type(model).__dict__:
        return "its rotary embedding (longrope) is of a kind that this model's code does not compute anew"
    return None


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the parameters of each rotary embedding: models have one, or one for each kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters or "type" in parameters:
        yield parameters
    else:
        yield from (each for each in parameters.values() if isinstance(each, Mapping))


def _used_kinds(model: Any) -> set[str]:
    """Return the kinds that its modules compute with: Hunyuan's configs say "dynamic" of one that never changes."""
    used = [module.rope_type for module in model.modules() if hasattr(module, "rope_type")]
    return {kind for each in used for kind in (each.values() if isinstance(each, Mapping) else [each])}


def _kind(rope: Mapping[str, Any]) -> str:
    name = str(rope.get("rope_type") or rope.get("type") or "default")
    return next((kind for kind in BY_LENGTH if kind in name), name)
