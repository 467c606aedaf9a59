"""Constrained decoding: which tokens the grammar allows, and how to close the value before the tokens run out."""

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Self

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pipelines.chat.grammars.building import Grammar
from pipelines.chat.syntax.tokens import TokenTable

CLOSERS: Final = ("}],:", '"ntf[{ .-')  # outside a string, what closes a JSON value soonest, before and after digits
DIGITS: Final = "0123456789"
LIMITS: Final = LLParserLimits(initial_lexer_fuel=10_000_000)  # for tools whose schemas fill a prompt of 500,000 tokens
VARIED: Final = "1a:@ZTD./-+"  # what ends strings of a format or a pattern, the least used of them first
FREE: Final = "\x01"  # which JSON never has: where it may come, any text may
MAX_PATH: Final = 400  # tokens; a value that no shorter path closes is not closed
MARGIN: Final = 32  # tokens before the closing path has to begin, from which on every token is checked


class Constraint:
    """One sequence's state in its grammar: `token_mask` before each token, `closing_token` after it, then `accept`.

    Near the end of its tokens, one that leads too far from the end of the grammar is replaced by the next token on a
    short path to that end.
    """

    def __init__(self, table: TokenTable, grammar: Grammar) -> None:
        """Compile the grammar. Raises RuntimeError where the library does not take it, such as for its size."""
        self._table = table
        self._matcher = LLMatcher(table.grammar, grammar.text, limits=LIMITS)
        if error := self._matcher.get_error():
            raise RuntimeError(f"the grammar is wrong: {error}")
        self._endings = [table.grammar.tokenize_str(text) for text in grammar.endings]
        self._check_at = 4 * MAX_PATH  # the closing path is computed next when so many tokens remain
        self._longest_path = 0  # so far
        self._begun_path: list[int] = []  # what is left of the path whose first token came last

    def copied(self) -> Self:
        """Return a constraint in the same state, for another sequence: a large grammar takes a second to compile."""
        other = copy.copy(self)
        other._matcher, other._begun_path = self._matcher.deep_copy(), list(self._begun_path)
        return other

    @property
    def complete(self) -> bool:
        """Return whether the output has ended, so that nothing more may come."""
        return bool(self._matcher.is_stopped())

    def near_limit(self, remaining: int) -> bool:
        """Return whether the next token has to be checked by `closing_token`, with so many tokens left."""
        return remaining <= self._check_at

    def token_mask(self) -> torch.Tensor:
        """Return the tokens that may come, as bools over the vocabulary."""
        return unpack_mask(self._matcher.compute_bitmask(), self._table.grammar.vocab_size)

    def closing_token(self, token: int, remaining: int) -> int | None:
        """Return another token, where this one would leave too few to close the value; else None. Needed only when
        `near_limit`."""
        if token in self._table.eos_ids:
            return None
        ahead = self._matcher.deep_copy()
        if ahead.consume_token(token):
            path = path_to_end(self._table.grammar, ahead, self._endings)
            if path is not None and len(path) < remaining:
                self._longest_path = max(self._longest_path, len(path))
                spare = remaining - len(path) - self._longest_path - MARGIN
                self._check_at = remaining - max(1, spare // 4)
                self._begun_path = []
                return None
        path, begun = path_to_end(self._table.grammar, self._matcher, self._endings), self._begun_path
        if begun and (path is None or len(path) > remaining):
            path = begun  # inside an ending of several tokens: a new path would write it from its beginning
        if path is None or len(path) > remaining:
            self._check_at = remaining * 3 // 4  # no end is in reach
            return None
        self._begun_path = path[1:]
        return path[0] if path else self._table.eos_id

    def accept(self, token: int) -> None:
        """Advance the grammar by a token. Raises RuntimeError where the grammar does not allow the token."""
        if not self._matcher.consume_token(token):
            raise RuntimeError(f"the grammar can't go on: {self._matcher.get_error()}")


def path_to_end(tokenizer: LLTokenizer, matcher: LLMatcher, endings: Sequence[list[int]]) -> list[int] | None:
    """Return tokens that close the output soon, though not always soonest; None if none are found.

    `endings` end free text. Characters of many kinds lead out of most patterns. Zeros make the shortest numbers; where
    they lead nowhere, as with multiples of seven, other digits are tried.
    """
    paths = (_closing_path(tokenizer, matcher.deep_copy(), endings, turn) for turn in (None, 0, 7))
    return next((path for path in paths if path is not None), None)


def _closing_path(
    tokenizer: LLTokenizer, matcher: LLMatcher, endings: Sequence[list[int]], turn: int | None
) -> list[int] | None:
    path: list[int] = []
    used = Counter[int]()  # tokens of the string that is open
    while not matcher.is_accepting():
        if len(path) > MAX_PATH:
            return None
        tokens: list[int] = matcher.compute_ff_tokens()
        if not tokens:
            order = (
                _closing_characters(tokenizer, matcher, used) if turn is None else _closers_from(turn * len(path) % 10)
            )
            tokens = _next_tokens(tokenizer, matcher, endings, order)
            used = Counter() if tokens == tokenizer.greedy_tokenize('"') else used + Counter(tokens)
        if not matcher.consume_tokens(tokens):
            return None
        path += tokens
    return path


def _next_tokens(tokenizer: LLTokenizer, matcher: LLMatcher, endings: Sequence[list[int]], order: str) -> list[int]:
    """Return what leads to the end where several tokens may come: the first character of the order, as a rule."""
    if _accepts(tokenizer, matcher, FREE):
        quote = tokenizer.greedy_tokenize("'")  # of Python's strings
        found = next((ending for ending in (*endings, quote) if _ends_text(tokenizer, matcher, ending)), None)
        return found or [next(_allowed(tokenizer, matcher, ""))]
    inside_string = all(_accepts(tokenizer, matcher, character) for character in CLOSERS[0])
    if not inside_string:
        found = next((ending for ending in endings if _fits(matcher, ending)), None)
        if found:
            return found
    return [next(_allowed(tokenizer, matcher, '"' if inside_string else order))]


def _closing_characters(tokenizer: LLTokenizer, matcher: LLMatcher, used: Counter[int]) -> str:
    """Return characters in the order in which they are tried: first what ends a string, or the value around it."""
    in_string = any(_accepts(tokenizer, matcher, letter) for letter in "aZ")
    varied = sorted(VARIED, key=lambda character: used[tokenizer.greedy_tokenize(character)[0]])
    return ('"' if in_string else CLOSERS[0] + '"') + "".join(varied)


def _ends_text(tokenizer: LLTokenizer, matcher: LLMatcher, ending: list[int]) -> bool:
    """Return whether these tokens may come and the text behind them is not free any more."""
    ahead = matcher.deep_copy()
    return _fits(matcher, ending) and ahead.consume_tokens(ending) and not _accepts(tokenizer, ahead, FREE)


def _fits(matcher: LLMatcher, tokens: list[int]) -> bool:
    return bool(matcher.validate_tokens(tokens) == len(tokens))


def _accepts(tokenizer: LLTokenizer, matcher: LLMatcher, character: str) -> bool:
    return _fits(matcher, tokenizer.greedy_tokenize(character))


def _closers_from(first_digit: int) -> str:
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
