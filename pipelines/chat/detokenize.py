"""One choice's tokens become deltas: bytes, whole characters, text and calls, and no stop string."""

from pipelines.chat.output_parser import Called, Piece, Reader, Said, Thought
from pipelines.chat.sampling import Drawn
from pipelines.chat.stops import StopFilter
from pipelines.chat.tokens import Detokenizer, TokenTable
from pipelines.protocol.chat import (
    ChatDelta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    TopToken,
)


class Answer:
    """What one choice has said so far. `reason` is set once there is no more to come."""

    def __init__(
        self,
        choice: int,
        table: TokenTable,
        stops: tuple[str, ...],
        reader: Reader | None = None,  # None where an answer is text and nothing else
        shown: frozenset[int] = frozenset(),  # special tokens that the reader needs to see
        most_calls: int | None = None,
    ) -> None:
        self._choice = choice
        self._table = table
        self._text = Detokenizer(table, frozenset(table.special) - shown)
        self._reader = reader
        self._stops = StopFilter(stops)
        self._most_calls = most_calls
        self._logprobs: list[TokenLogprob] = []  # of the tokens since the last delta
        self.reason: FinishReason | None = None

    @property
    def thinking(self) -> bool:
        """Whether the next token belongs to the reasoning."""
        return self._reader is not None and self._reader.thinking

    def feed(self, drawn: Drawn) -> list[ChatDelta]:
        """One more token."""
        if drawn.logprob is not None:
            self._logprobs.append(self._told(drawn.token, drawn.logprob, drawn.top))
        deltas = self._read(self._text.feed(drawn.token))
        if self._stops.found:
            self.end("stop")
        if self._reader and self._most_calls is not None and self._reader.calls >= self._most_calls:
            self.end("stop")
        return deltas

    def end(self, reason: FinishReason) -> None:
        """No more tokens come. Calls that are whole are what it ended for; one that was cut short is not."""
        if self.reason is None:
            calls = self._reader is not None and (self._reader.calls > 0 or self._reader.in_call)
            self.reason = "tool_calls" if calls and reason == "stop" else reason

    def finish(self) -> list[ChatDelta]:
        """What was held back comes out."""
        deltas = self._read(self._text.finish())
        if self._reader:
            deltas += self._deltas(self._reader.finish())
        return deltas + self._said(self._stops.finish())

    def _read(self, text: str) -> list[ChatDelta]:
        if not text:
            return []
        return self._deltas(self._reader.feed(text) if self._reader else [Said(text)])

    def _deltas(self, pieces: list[Piece]) -> list[ChatDelta]:
        deltas: list[ChatDelta] = []
        for piece in pieces:
            match piece:
                case Said(text):
                    deltas += self._said(self._stops.feed(text))
                case Thought(text):
                    deltas.append(ReasoningDelta(self._choice, text))
                case Called(index, arguments, name, call_id) if self._most_calls is None or index < self._most_calls:
                    deltas.append(ToolCallDelta(self._choice, index, arguments, call_id, name))
            if not isinstance(piece, Said):
                self._logprobs.clear()  # they are told of text alone
        return deltas

    def _said(self, text: str) -> list[ChatDelta]:
        if self._stops.found and not text:
            self._logprobs.clear()
        if not text:
            return []
        logprobs, self._logprobs = tuple(self._logprobs), []
        return [TextDelta(self._choice, text, logprobs)]

    def _told(self, token: int, logprob: float, likeliest: tuple[tuple[int, float], ...]) -> TokenLogprob:
        table = self._table
        top = tuple(TopToken(table.text(other), table.data(other), value) for other, value in likeliest)
        return TokenLogprob(table.text(token), table.data(token), logprob, top)
