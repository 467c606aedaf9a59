"""One choice's tokens become deltas: bytes, characters, no stop strings."""

from pipelines.chat.sampling import Drawn
from pipelines.chat.stops import StopFilter
from pipelines.chat.tokens import Detokenizer, TokenTable
from pipelines.chat_types import ChatDelta, FinishReason, TextDelta, TokenLogprob, TopToken


class Answer:
    """What one choice has said so far. `reason` is set once it has said enough by itself."""

    def __init__(self, choice: int, table: TokenTable, stops: tuple[str, ...]) -> None:
        self._choice = choice
        self._table = table
        self._text = Detokenizer(table, table.special)
        self._stops = StopFilter(stops)
        self._logprobs: list[TokenLogprob] = []  # of the tokens since the last delta
        self.reason: FinishReason | None = None

    def feed(self, drawn: Drawn) -> list[ChatDelta]:
        """One more token."""
        if drawn.logprob is not None:
            self._logprobs.append(self._told(drawn.token, drawn.logprob, drawn.top))
        shown = self._stops.feed(self._text.feed(drawn.token))
        if self._stops.found:
            self.reason = "stop"
            self._logprobs = self._logprobs if shown else []
        return self._delta(shown)

    def finish(self) -> list[ChatDelta]:
        """There are no more tokens: what was held back comes out."""
        shown = self._stops.feed(self._text.finish()) + self._stops.finish()
        return self._delta(shown)

    def _delta(self, text: str) -> list[ChatDelta]:
        if not text:
            return []
        logprobs, self._logprobs = tuple(self._logprobs), []
        return [TextDelta(self._choice, text, logprobs)]

    def _told(self, token: int, logprob: float, likeliest: tuple[tuple[int, float], ...]) -> TokenLogprob:
        table = self._table
        top = tuple(TopToken(table.text(other), table.data(other), value) for other, value in likeliest)
        return TokenLogprob(table.text(token), table.data(token), logprob, top)
