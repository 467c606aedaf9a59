"""What is said of a family of chat models."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 16_384,
}


@dataclass(frozen=True, slots=True)
class ChatFamily:
    """One family, and what its models write."""

    name: str
    build: Callable[[PreTrainedTokenizerFast], PreTrainedModel]
    template: str  # a file of the package of templates; `tokenizer` for the one of its own; else one of the tests' own
    eos: str
    bos: str | None = None
    tokenizer: str | None = None  # a published one; else bytes, and the family's marks
    writes: str | None = None  # a case of `chat_outputs`: its thoughts and calls
    thinks: bool = False
    thoughts: str = ""  # where they are not those of the case
    processor: Callable[[PreTrainedTokenizerFast], Any] | None = None  # of a model that sees images

    @property
    def class_name(self) -> str:
        """Return the model's class, as its config names it."""
        return self.build.__name__


def sizes(tokenizer: PreTrainedTokenizerFast, **own: Any) -> dict[str, Any]:
    """Return a small config for a tokenizer, with the family's own values."""
    tokens = {
        "vocab_size": (len(tokenizer) + 63) // 64 * 64,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return {**SIZES, **tokens, **own}


def built(model: type[PreTrainedModel], config: type[Any], **own: Any) -> Callable[..., PreTrainedModel]:
    """Return a function that builds this model for a tokenizer."""

    def build(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
        return model(config(**sizes(tokenizer, **own)))

    build.__name__ = model.__name__
    return build
