"""One choice's tokens become deltas: whole characters, then text, reasoning and tool calls, without stop strings."""

import codecs
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pipelines.chat.steps.sampling import SampledToken
from pipelines.chat.syntax.output_parser import DroppedText, OutputParser
from pipelines.chat.syntax.tokens import TokenTable
from pipelines.protocol.chat import (
    ChatDelta,
    FinishReason,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    TopToken,
)


class StopFilter:
    """Passes text through as it comes, except text that may be the beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._pending = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Add text, and return the part that may be shown now. Nothing follows a match."""
        if not self._stops or self.matched:
            return "" if self.matched else text
        pending = self._pending + text
        matches = [(index, stop) for stop in self._stops if (index := pending.find(stop)) >= 0]
        if matches:
            index, self.matched = min(matches)
            self._pending = ""
            return pending[:index]
        safe = self._possible_match(pending)
        self._pending = pending[safe:]
        return pending[:safe]

    def flush(self) -> str:
        """Return the text that was held back: now that the text has ended, it is no stop string."""
        pending, self._pending = self._pending, ""
        return pending

    def _possible_match(self, pending: str) -> int:
        """Return the earliest index from which on the text is the beginning of a stop string; its length if there is
        none."""
        longest = max(map(len, self._stops)) - 1
        for start in range(max(0, len(pending) - longest), len(pending)):
            if any(stop.startswith(pending[start:]) for stop in self._stops):
                return start
        return len(pending)


CONTINUATION: Final = frozenset(bytes([byte]) for byte in range(0x80, 0xC0))  # bytes inside a character of UTF-8


class Detokenizer:
    """Characters out of one choice's tokens, as soon as all their bytes are there."""

    def __init__(self, table: TokenTable, hidden: frozenset[int]) -> None:
        self._table = table
        self._hidden = hidden  # special tokens, which are no text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_space = table.strips_first_space

    def feed(self, token: int) -> str:
        """Return the characters that this token completes."""
        if token in self._hidden:
            return ""
        data = self._table.bytes_of(token)
        if self._strip_space and data:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return the replacement for a character that was never completed, an empty text if there is none."""
        return self._decoder.decode(b"", final=True)


class ChoiceOutput:
    """The output of one choice so far. `finish_reason` is set once no more tokens come."""

    def __init__(
        self,
        choice: int,
        table: TokenTable,
        stops: tuple[str, ...],
        parser: OutputParser | None = None,  # None where all output is text
        visible: frozenset[int] = frozenset(),  # special tokens that the parser needs to see
        max_calls: int | None = None,
    ) -> None:
        self._choice = choice
        self._table = table
        self._special = {text.encode() for text in table.special.values()}
        self._hidden = frozenset(table.special) - visible
        self._detokenizer = Detokenizer(table, self._hidden)
        self._parser = parser
        self._stops = StopFilter(stops)
        self._max_calls = max_calls
        self.max_string: int | None = None  # characters at which a grammar ends strings that could be longer
        self._values: dict[int | None, list[str]] = {}  # pieces of the calls' arguments; None: of the text
        self._logprobs: list[TokenLogprob] = []  # of tokens whose text has not come yet
        self.finish_reason: FinishReason | None = None
        self.was_cut = False  # the server has written its end, since the tokens ran out

    @property
    def in_reasoning(self) -> bool:
        """Return whether the next token belongs to the reasoning."""
        return self._parser is not None and self._parser.in_reasoning

    @property
    def stop(self) -> str | None:
        """Return the stop string that ended the text, if one did."""
        return None if self.was_cut else self._stops.matched

    def feed(self, sampled: SampledToken) -> list[ChatDelta]:
        """Add a token, and return the deltas that it completes. A stop string or the last allowed call ends the
        choice."""
        if sampled.logprob is not None and sampled.token not in self._hidden:
            self._logprobs.append(self._token_logprob(sampled.token, sampled.logprob, sampled.top))
        deltas = self._parse(self._detokenizer.feed(sampled.token))
        if self._stops.matched:
            self.end("stop")
        if self._parser and self._max_calls is not None and self._parser.call_count >= self._max_calls:
            self.end("stop")
        return deltas

    def end(self, reason: FinishReason) -> None:
        """End the choice: no more tokens come. A stop where there are tool calls is reported as "tool_calls", and one
        that the server has brought about as "length"."""
        if self.finish_reason is None:
            calls = self._parser is not None and (self._parser.call_count > 0 or self._parser.in_call)
            reason = "length" if self.was_cut else reason
            self.finish_reason = "tool_calls" if calls and reason == "stop" else reason

    def flush(self) -> list[ChatDelta]:
        """Return the deltas that were held back until the end."""
        deltas = self._parse(self._detokenizer.flush())
        if self._parser:
            held = self._parser.flush()
            cut = self.finish_reason == "length"
            deltas += self._deltas([delta for delta in held if not (cut and self._is_begun_mark(delta))])
        deltas += self._text_delta(self._stops.flush())
        if self.max_string is not None and any(map(self._reaches_bound, self._values.values())):
            self.finish_reason = "length"
        return deltas

    def _reaches_bound(self, pieces: Sequence[str]) -> bool:
        """Return whether a string in a JSON value is as long as the grammar let it become."""
        try:
            waiting = [json.loads("".join(pieces))]
        except ValueError:
            return False
        for value in waiting:
            if isinstance(value, str) and len(value) == self.max_string:
                return True
            waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return False

    def _is_begun_mark(self, delta: ChatDelta | DroppedText) -> bool:
        """Return whether text that was held back to the end is the beginning of a mark of several tokens."""
        return isinstance(delta, TextDelta) and any(mark in delta.text for mark in self._table.control_tokens)

    def _parse(self, text: str) -> list[ChatDelta]:
        if not text:
            return []
        return self._deltas(self._parser.feed(text) if self._parser else [TextDelta(self._choice, text)])

    def _deltas(self, parsed: Sequence[ChatDelta | DroppedText]) -> list[ChatDelta]:
        """Return what is sent of the parser's deltas: text with its logprobs, up to a stop string, and as many calls as
        are allowed."""
        deltas: list[ChatDelta] = []
        for delta in parsed:
            match delta:
                case TextDelta():
                    deltas += self._text_delta(self._stops.feed(delta.text))
                    continue
                case DroppedText():
                    self._logprobs = self._behind_marker()
                    continue
                case ToolCallDelta(index=index) if self._max_calls is not None and index >= self._max_calls:
                    pass
                case _:
                    deltas.append(replace(delta, choice=self._choice))
                    if self.max_string is not None and isinstance(delta, ToolCallDelta):
                        self._values.setdefault(delta.index, []).append(delta.arguments)
            self._logprobs.clear()  # only text has them
        return deltas

    def _behind_marker(self) -> list[TokenLogprob]:
        """Return the tokens of the text behind a marker, which ends in a special token or with the last character."""
        tokens = self._logprobs
        if special := [index for index, token in enumerate(tokens) if token.data in self._special]:
            return tokens[special[-1] + 1 :]
        first = len(tokens) - 1
        while first > 0 and tokens[first].data[:1] in CONTINUATION:
            first -= 1
        return tokens[max(0, first) :]

    def _text_delta(self, text: str) -> list[ChatDelta]:
        if self.max_string is not None and text:
            self._values.setdefault(None, []).append(text)
        return [TextDelta(self._choice, text, self._take_logprobs(text.encode()))] if text else []

    def _take_logprobs(self, text: bytes) -> tuple[TokenLogprob, ...]:
        """Return those of this text's tokens, cut to what is in it: together they are the text."""
        tokens, at = self._logprobs, 0
        taken, self._logprobs = [], []
        if (begin := b"".join(token.data for token in tokens).find(text)) < 0:
            return tuple(tokens)
        for token in tokens:
            first, last = max(0, begin - at), max(0, begin + len(text) - at)
            taken += [_cut(token, first, last)] if token.data[first:last] else []
            self._logprobs += [_cut(token, last, len(token.data))] if token.data[last:] else []
            at += len(token.data)
        return tuple(taken)

    def _token_logprob(self, token: int, logprob: float, likeliest: tuple[tuple[int, float], ...]) -> TokenLogprob:
        table = self._table
        top = tuple(TopToken(table.text_of(other), table.bytes_of(other), value) for other, value in likeliest)
        return TokenLogprob(table.text_of(token), table.bytes_of(token), logprob, top)


def _cut(token: TokenLogprob, first: int, last: int) -> TokenLogprob:
    data = token.data[first:last]
    return token if data == token.data else replace(token, text=data.decode(errors="replace"), data=data)
