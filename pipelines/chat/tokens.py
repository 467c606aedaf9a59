"""Tokens as bytes and as text: what a stream may show of them, and when."""

import codecs
import json
from typing import Any

from llguidance import LLTokenizer
from llguidance.hf import from_tokenizer

from pipelines.catalog.checkpoint_files import CheckpointError


class TokenTable:
    """The bytes of every token. Any thread may read it."""

    def __init__(self, tokenizer: Any, ends: list[int]) -> None:
        try:
            self.grammar: LLTokenizer = from_tokenizer(tokenizer, eos_token=ends)
        except Exception as error:  # the library raises anything for a tokenizer it does not know
            raise CheckpointError(f"the tokenizer's tokens can't be read as bytes: {error}") from error
        added = tokenizer.added_tokens_decoder
        self.ends, self.first_end = frozenset(ends), ends[0]
        self.count = len(tokenizer)
        self.special = {token_id: token.content for token_id, token in added.items() if token.special}
        # what the grammar library takes for marks without text, whether or not the tokenizer calls them special
        self.marks = {token.content: token_id for token_id, token in added.items() if self._is_mark(token_id)}
        self._bytes: dict[int, bytes] = {token_id: token.content.encode() for token_id, token in added.items()}
        self.strips_first_space = _strips_first_space(tokenizer)

    def _is_mark(self, token: int) -> bool:
        return token < self.grammar.vocab_size and bool(self.grammar.is_special_token(token))

    def data(self, token: int) -> bytes:
        """A token's bytes; they may begin or end inside a character."""
        if token not in self._bytes:
            self._bytes[token] = self.grammar.decode_bytes([token])
        return self._bytes[token]

    def text(self, token: int) -> str:
        """A token to be read by people."""
        return self.data(token).decode(errors="replace")


class Detokenizer:
    """Text out of one answer's tokens: whole characters, as soon as they are whole."""

    def __init__(self, table: TokenTable, hidden: frozenset[int]) -> None:
        self._table = table
        self._hidden = hidden  # tokens that are marks, not text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = table.strips_first_space

    def feed(self, token: int) -> str:
        """The characters that this token completes."""
        if token in self._hidden:
            return ""
        data = self._table.data(token)
        if self._first and data:
            self._first = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left of a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def _strips_first_space(tokenizer: Any) -> bool:
    """SentencePiece's way: a text's first word carries a space that is no part of it."""
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"] or {}
    steps = decoder.get("decoders", [decoder])
    return any(step.get("type") in ("Strip", "Metaspace") for step in steps)
