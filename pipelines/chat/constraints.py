"""Constrained decoding: which tokens the grammar allows, and how to close the value before the tokens run out."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from pipelines.chat.grammars import Grammar
from pipelines.chat.tokens import TokenTable

CLOSERS: Final = ("}],:", '"ntf[{ .-')  # outside a string, what closes a JSON value soonest, before and after digits
DIGITS: Final = "0123456789"
MAX_PATH: Final = 400  # tokens; a value that no shorter path closes is not closed
MARGIN: Final = 32  # tokens before the closing path has to begin, from which on every token is checked


class Constraint:
    """One sequence's state in its grammar: `token_mask` before each token, `closing_token` after it, then `accept`.

    Near the end of its tokens, one that leads too far from the end of the grammar is replaced by the next token on a
    short path to that end.
    """

    def __init__(self, table: TokenTable, grammar: Grammar, starts_after: bytes = b"") -> None:
        self._table = table
        self._matcher = LLMatcher(table.grammar, grammar.text)
        self._has_text = grammar.has_text
        self._starts_after = starts_after  # the grammar applies behind these bytes; what comes before them is free
        self._recent = b""
        self._strings = StringState()
        self._check_at = 4 * MAX_PATH  # the closing path is computed next when so many tokens remain
        self._longest_path = 0  # so far

    @property
    def complete(self) -> bool:
        """Return whether the value has ended, so that nothing more may come."""
        return not self._starts_after and self._matcher.is_stopped()

    @property
    def satisfied(self) -> bool:
        """Return whether the output may end here, since the required value is there."""
        return not self._starts_after and not self._has_text and self._matcher.is_accepting()

    def near_limit(self, remaining: int) -> bool:
        """Return whether the next token has to be checked by `closing_token`, with so many tokens left."""
        return not self._starts_after and remaining <= self._check_at

    def token_mask(self) -> torch.Tensor | None:
        """Return the tokens that may come, as bools over the vocabulary; None where any token may come."""
        if self._starts_after:
            return None
        return unpack_mask(self._matcher.compute_bitmask(), self._table.grammar.vocab_size)

    def closing_token(self, token: int, remaining: int) -> int | None:
        """Return another token, where this one would leave too few to close the value; else None. Needed only when
        `near_limit`."""
        ahead, strings = self._matcher.deep_copy(), self._strings.copy()
        if token not in self._table.eos_ids and ahead.consume_token(token):
            strings.feed(self._table.bytes_of(token))
            path = path_to_end(self._table.grammar, ahead, strings)
            if path is not None and len(path) < remaining:
                self._longest_path = max(self._longest_path, len(path))
                spare = remaining - len(path) - self._longest_path - MARGIN
                self._check_at = remaining - max(1, spare // 4)
                return None
        path = path_to_end(self._table.grammar, self._matcher, self._strings)
        if path is None or len(path) > remaining:
            self._check_at = remaining * 3 // 4  # no end is in reach
            return None
        return path[0] if path else self._table.eos_id

    def accept(self, token: int) -> None:
        """Advance the grammar by a token. Raises RuntimeError where the grammar does not allow the token."""
        if self._starts_after:
            self._recent = (self._recent + self._table.bytes_of(token))[-64:]
            if self._starts_after in self._recent:
                self._starts_after = b""
            return
        if not self._matcher.consume_token(token):
            raise RuntimeError(f"the grammar can't go on: {self._matcher.get_error()}")
        self._strings.feed(self._table.bytes_of(token))


class StringState:
    """Whether JSON text is inside a string."""

    def __init__(self, *, inside: bool = False, escaped: bool = False) -> None:
        self.inside = inside
        self._escaped = escaped

    def feed(self, data: bytes) -> None:
        """Follow the text through these bytes."""
        for byte in data:
            if self._escaped:
                self._escaped = False
            elif self.inside and byte == ord("\\"):
                self._escaped = True
            elif byte == ord('"'):
                self.inside = not self.inside

    def copy(self) -> "StringState":
        """Return a copy of the state."""
        return StringState(inside=self.inside, escaped=self._escaped)


def path_to_end(tokenizer: LLTokenizer, matcher: LLMatcher, strings: StringState) -> list[int] | None:
    """Find tokens that close a JSON text soon, though not always soonest; None if none are found.

    Zeros make the shortest numbers; where they lead nowhere, as with multiples of seven, other digits are tried.
    """
    for turn in (0, 7):
        path = _path(tokenizer, matcher.deep_copy(), strings.copy(), turn)
        if path is not None:
            return path
    return None


def _path(tokenizer: LLTokenizer, matcher: LLMatcher, strings: StringState, turn: int) -> list[int] | None:
    path: list[int] = []
    while not matcher.is_accepting():
        if len(path) > MAX_PATH:
            return None
        tokens: list[int] = matcher.compute_ff_tokens()
        if not tokens:
            preferred = '"' if strings.inside else _closers(turn * len(path) % 10)
            tokens = [next(_allowed(tokenizer, matcher, preferred))]
        if not matcher.consume_tokens(tokens):
            return None
        strings.feed(tokenizer.decode_bytes(tokens))
        path += tokens
    return path


def _closers(first_digit: int) -> str:
    return CLOSERS[0] + DIGITS[first_digit:] + DIGITS[:first_digit] + CLOSERS[1]


def _allowed(tokenizer: LLTokenizer, matcher: LLMatcher, preferred: str) -> Iterator[int]:
    """Yield the tokens that may come: those of the preferred characters in their order, then all others."""
    for character in preferred:
        token = tokenizer.greedy_tokenize(character)[0]
        if matcher.validate_tokens([token]):
            yield int(token)
    yield from unpack_mask(matcher.compute_bitmask(), tokenizer.vocab_size).nonzero()[:, 0].tolist()


def unpack_mask(packed: bytes, count: int) -> torch.Tensor:
    """Return a bit mask as bools."""
    unpacked = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little", count=count)
    return torch.from_numpy(unpacked).bool()
