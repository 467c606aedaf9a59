"""Decoding that can't leave a grammar: which tokens may come, and how to reach the end before the tokens run out."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from pipelines.chat.grammars import Grammar
from pipelines.chat.tokens import TokenTable

CLOSERS: Final = ("}],:", '"ntf[{ .-')  # outside a string, what ends a JSON value soonest, before and after digits
DIGITS: Final = "0123456789"
LONGEST_PATH: Final = 400  # tokens; where nothing shorter ends the value, it is not brought to an end
CLOSE_CALL: Final = 32  # this many tokens before the path to the end has to be taken, every token is looked at


class Constraint:
    """One sequence's place in its grammar. `allowed` before each token, `way_out` when it was drawn, then `accept`.

    Towards the end of its tokens, one that leads too far from the grammar's end is not taken: the next one on a short
    path to the end comes in its place.
    """

    def __init__(self, table: TokenTable, grammar: Grammar, begins_after: bytes = b"") -> None:
        self._table = table
        self._matcher = LLMatcher(table.grammar, grammar.text)
        self._has_text = grammar.has_text
        self._begins_after = begins_after  # the grammar rules what follows these bytes; what comes before is free
        self._seen = b""
        self._quotes = Quotes()
        self._careful_at = 4 * LONGEST_PATH  # how many tokens are left when the path to the end is looked for next
        self._longest = 0  # of the paths that were found

    @property
    def complete(self) -> bool:
        """Whether nothing more may come."""
        return not self._begins_after and self._matcher.is_stopped()

    @property
    def satisfied(self) -> bool:
        """Whether what was asked for is there, so that it may end here."""
        return not self._begins_after and not self._has_text and self._matcher.is_accepting()

    def careful(self, left: int) -> bool:
        """Whether a token that is drawn now has to be looked at; `left` may still be drawn."""
        return not self._begins_after and left <= self._careful_at

    def allowed(self) -> torch.Tensor | None:
        """A bool mask over the vocabulary; None where anything may come."""
        if self._begins_after:
            return None
        return bits(self._matcher.compute_bitmask(), self._table.grammar.vocab_size)

    def way_out(self, token: int, left: int) -> int | None:
        """Another token, where this one would leave too few to reach the end. To be asked when `careful`."""
        ahead, quotes = self._matcher.deep_copy(), self._quotes.copy()
        if token not in self._table.ends and ahead.consume_token(token):
            quotes.feed(self._table.data(token))
            path = path_to_end(self._table.grammar, ahead, quotes)
            if path is not None and len(path) < left:
                self._longest = max(self._longest, len(path))
                spare = left - len(path) - self._longest - CLOSE_CALL
                self._careful_at = left - max(1, spare // 4)
                return None
        path = path_to_end(self._table.grammar, self._matcher, self._quotes)
        if path is None or len(path) > left:
            self._careful_at = left * 3 // 4  # there is no end in reach
            return None
        return path[0] if path else self._table.first_end

    def accept(self, token: int) -> None:
        """It comes. Raises RuntimeError where the grammar did not allow it."""
        if self._begins_after:
            self._seen = (self._seen + self._table.data(token))[-64:]
            if self._begins_after in self._seen:
                self._begins_after = b""
            return
        if not self._matcher.consume_token(token):
            raise RuntimeError(f"the grammar can't go on: {self._matcher.get_error()}")
        self._quotes.feed(self._table.data(token))


class Quotes:
    """Whether JSON text is inside a string."""

    def __init__(self, *, inside: bool = False, escaped: bool = False) -> None:
        self.inside = inside
        self._escaped = escaped

    def feed(self, data: bytes) -> None:
        """More of the text."""
        for byte in data:
            if self._escaped:
                self._escaped = False
            elif self.inside and byte == ord("\\"):
                self._escaped = True
            elif byte == ord('"'):
                self.inside = not self.inside

    def copy(self) -> "Quotes":
        """To try something with."""
        return Quotes(inside=self.inside, escaped=self._escaped)


def path_to_end(tokenizer: LLTokenizer, matcher: LLMatcher, quotes: Quotes) -> list[int] | None:
    """Tokens that end a JSON text soon, though not always soonest; None if none are found.

    Zeros make the shortest numbers; where they lead nowhere, as with multiples of seven, other digits are tried.
    """
    for turn in (0, 7):
        path = _path(tokenizer, matcher.deep_copy(), quotes.copy(), turn)
        if path is not None:
            return path
    return None


def _path(tokenizer: LLTokenizer, matcher: LLMatcher, quotes: Quotes, turn: int) -> list[int] | None:
    path: list[int] = []
    while not matcher.is_accepting():
        if len(path) > LONGEST_PATH:
            return None
        tokens: list[int] = matcher.compute_ff_tokens()
        if not tokens:
            wanted = '"' if quotes.inside else _closers(turn * len(path) % 10)
            tokens = [next(_possible(tokenizer, matcher, wanted))]
        if not matcher.consume_tokens(tokens):
            return None
        quotes.feed(tokenizer.decode_bytes(tokens))
        path += tokens
    return path


def _closers(first_digit: int) -> str:
    return CLOSERS[0] + DIGITS[first_digit:] + DIGITS[:first_digit] + CLOSERS[1]


def _possible(tokenizer: LLTokenizer, matcher: LLMatcher, wanted: str) -> Iterator[int]:
    """The tokens of the wanted characters that may come, the best one first, and then whatever may."""
    for character in wanted:
        token = tokenizer.greedy_tokenize(character)[0]
        if matcher.validate_tokens([token]):
            yield int(token)
    yield from bits(matcher.compute_bitmask(), tokenizer.vocab_size).nonzero()[:, 0].tolist()


def bits(packed: bytes, count: int) -> torch.Tensor:
    """A packed mask as bools."""
    unpacked = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little", count=count)
    return torch.from_numpy(unpacked).bool()
