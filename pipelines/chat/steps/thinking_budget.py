"""A budget of thoughts: when it is spent, the thought is closed as its family closes it, and the answer goes on."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

SEEN_LATE: Final = 1  # tokens: whether a mark has ended a thought may be known by what follows it
WORDS_FROM: Final = 4  # times the length of its closing words has a budget that has them


@dataclass(slots=True)
class ThinkingBudget:
    """The tokens that one choice may think. What closes a thought is a part of them, if there is room."""

    tokens: int
    words: Sequence[int]  # before the mark that ends a thought
    mark: Sequence[int]
    again: Sequence[int]  # ends a thought that begins when one was ended here
    used: int = 0
    _ended: bool = False  # a thought was ended here
    _due: list[int] = field(default_factory=list)  # tokens that have to come
    _last: list[int] = field(default_factory=list)
    _unsure: int = 0  # tokens from which on it is known again whether a thought is open

    @classmethod
    def of(cls, tokens: int, words: Sequence[int], mark: Sequence[int], again: Sequence[int] = ()) -> Self:
        """Return a budget of so many tokens, with the words that come before the mark where there is room."""
        return cls(tokens, words if tokens >= WORDS_FROM * len(words) else (), mark, again or mark)

    def copied(self) -> Self:
        """Return the same budget for another choice."""
        return replace(self, _due=[], _last=[])

    def due(self, *, thinking: bool) -> int | None:
        """Return the token that has to come next; None if any may."""
        closing = self.again if self._ended else (*self.words, *self.mark)
        spent = self.used + len(closing) + SEEN_LATE >= self.tokens
        if thinking and spent and not self._due and not self._unsure:
            self._due, self._ended = list(closing), True
        return self._due[0] if self._due else None

    def took(self, token: int, *, thinking: bool) -> None:
        """Count a token. One that had to come and did not, since a grammar forbids it, is not tried again."""
        self.used += thinking
        if self._due:
            self._due = self._due[1:] if token == self._due[0] else []
        self._last = [*self._last, token][-len(self.mark) :]
        ended = self._last == list(self.mark)
        self._unsure = SEEN_LATE if ended else max(0, self._unsure - 1)
