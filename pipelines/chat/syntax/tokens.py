"""The vocabulary: every token as bytes and as text."""

import json
from typing import Any

from llguidance import LLTokenizer
from llguidance.hf import from_tokenizer

from pipelines.checkpoints.errors import CheckpointError


class TokenTable:
    """A tokenizer's vocabulary. Any thread may read it."""

    def __init__(self, tokenizer: Any, eos_ids: list[int]) -> None:
        try:
            self.grammar: LLTokenizer = from_tokenizer(tokenizer, eos_token=eos_ids)
        except Exception as error:  # the library raises anything for a tokenizer it does not know
            raise CheckpointError(f"the tokenizer's tokens can't be read as bytes: {error}") from error
        added = tokenizer.added_tokens_decoder
        self.eos_ids, self.eos_id = frozenset(eos_ids), eos_ids[0]
        self.vocab_size = len(tokenizer)
        self.special = {token_id: token.content for token_id, token in added.items() if token.special}
        # what the grammar library takes for tokens without text, whether or not the tokenizer calls them special
        self.control_tokens = {
            token.content: token_id for token_id, token in added.items() if self._is_control_token(token_id)
        }
        self._bytes: dict[int, bytes] = {token_id: token.content.encode() for token_id, token in added.items()}
        self.strips_first_space = _strips_first_space(tokenizer)

    def _is_control_token(self, token: int) -> bool:
        return token < self.grammar.vocab_size and bool(self.grammar.is_special_token(token))

    def bytes_of(self, token: int) -> bytes:
        """Return a token's bytes, which may begin or end inside a character."""
        if token not in self._bytes:
            self._bytes[token] = self.grammar.decode_bytes([token])
        return self._bytes[token]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, in which marks are control tokens."""
        return list(self.grammar.tokenize_str(text))

    def text_of(self, token: int) -> str:
        """Return a token's text for people to read: bytes that are no whole character become U+FFFD."""
        return self.bytes_of(token).decode(errors="replace")


def _strips_first_space(tokenizer: Any) -> bool:
    """Return whether the tokenizer is of SentencePiece's kind: a text's first word carries a space that is no part of
    it."""
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"] or {}
    steps = decoder.get("decoders", [decoder])
    return any(step.get("type") in ("Strip", "Metaspace") for step in steps)
