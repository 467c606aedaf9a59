"""How much of a prompt the text encoders read, by watching their tokenizers while a pipeline runs.

Every family cuts in its own place: at 77 tokens of CLIP, at 512 of T5, in the middle of a chat template. All of them
ask a tokenizer to do it, so the counts here are those of the real cuts, and no family is known by its name.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from pipelines.device.call_wrapping import Call, wrap_calls
from pipelines.protocol.images import LongPrompt

ALIKE = 0.5  # share of a prompt's words that a cleaned form of it still has


@dataclass(frozen=True, slots=True)
class PromptPlace:
    """A prompt in a text. `prompt` is as the text has it, `whole` as the caller wrote it, from `offset` on; None where
    the two can't be compared character by character."""

    whole: str
    head: str
    prompt: str
    tail: str
    offset: int | None


def find_prompt(text: str, prompts: Sequence[str]) -> PromptPlace | None:
    """Return the place of the longest of the prompts that the text has, as it is, stripped or in lower case; else the
    text as a cleaned form of the prompt that it is most like."""
    for whole in sorted(prompts, key=len, reverse=True):
        for form in dict.fromkeys((whole, whole.strip(), whole.lower(), whole.lower().strip())):
            start = text.rfind(form)
            if start >= 0:
                offset = 0 if form[0].isspace() else len(whole) - len(whole.lstrip())
                return PromptPlace(whole, text[:start], form, text[start + len(form) :], offset)
    if find_containing_prompt(text, prompts) is not None:
        return None
    similarity, whole = max(((_similarity(text, each), each) for each in prompts), default=(0.0, ""))
    return PromptPlace(whole, "", text, "", None) if similarity >= ALIKE else None


def find_containing_prompt(text: str, prompts: Sequence[str]) -> str | None:
    """Return the longest prompt that the text is a piece of."""
    return max((each for each in prompts if text.strip() and text in each), key=len, default=None)


def _similarity(text: str, prompt: str) -> float:
    words = set(re.findall(r"\w+", prompt.lower()))
    return len(words & set(re.findall(r"\w+", text.lower()))) / max(1, len(words))


UNLIMITED = 10**6  # tokens: tokenizers without a limit have a larger one
MAX_WINDOWS = 16  # of a prompt that is read in windows


class PromptTooLong(Exception):
    """No text encoder reads all of a prompt that is to be read whole or refused. `field` is the request's, `read_part`
    how much of it would be read."""

    def __init__(self, field: str, used: int, of: int) -> None:
        super().__init__(f"'{field}' has {used} tokens, of which this model reads {of}")
        self.field = field
        self.read_part = of / used


@dataclass(frozen=True, slots=True)
class Reading:
    """The part of a text that one encoder read, in tokens of the text alone: special ones and a template's are left
    out."""

    text: str
    encoder: str  # the component that is its tokenizer
    used: int
    of: int | None  # the most that it reads; None without a limit
    cut: int = 0
    cut_at: int | None = None  # the character of the text where the part begins that was not read, if it is known
    windows: int = 1

    def numbers(self) -> dict[str, int]:
        """Return the counts as JSON, without those that say nothing."""
        counts = {"of": self.of, "cut": self.cut or None, "cut_at": self.cut_at}
        counts["windows"] = self.windows if self.windows > 1 else None
        return {"used": self.used, **{name: value for name, value in counts.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class Measure:
    """A prompt's place in a tokenizer's input. `count` gives the tokens of a text, special ones included."""

    count: Callable[[str], int]
    place: PromptPlace
    fixed: int  # tokens that are not the prompt's

    def fitting_chars(self, limit: int) -> int:
        """Return the most characters of the prompt with which the whole text is at most `limit` tokens."""
        head, prompt, tail = self.place.head, self.place.prompt, self.place.tail
        lengths = range(len(prompt) + 1)
        fitting = bisect_right(lengths, limit, key=lambda length: self.count(head + prompt[:length] + tail))
        return max(0, fitting - 1)

    def cut_to(self, reading: Reading, room: int) -> Reading:
        """Return the reading of an encoder that keeps `room` tokens of the prompt."""
        total = reading.used + reading.cut
        if total <= room:
            return replace(reading, used=total, of=room, cut=0, cut_at=None)
        offset = self.place.offset
        cut_at = None if offset is None else offset + self.fitting_chars(room + self.fixed)
        return replace(reading, used=room, of=room, cut=total - room, cut_at=cut_at)


class Encoder(NamedTuple):
    """A watched tokenizer: its component's name, and its call as the library has it."""

    name: str
    tokenizer: Any
    call: Callable[..., Any]

    def ids(self, text: str, *, special: bool) -> list[int]:
        """Return the ids of a text's tokens, with the tokenizer's special ones if `special`."""
        found: list[int] = self.call(self.tokenizer, text, add_special_tokens=special)["input_ids"]
        return found

    def limit(self, options: Mapping[str, Any]) -> int | None:
        """Return the tokens to which a call with these options cuts; None if it does not."""
        cuts, most = options.get("truncation"), options.get("max_length")
        if cuts is None and most is not None and not options.get("padding"):
            return int(most)  # then the library cuts too
        if cuts in {None, False, "do_not_truncate"}:
            return None
        limit = int(self.tokenizer.model_max_length if most is None else most)
        return limit if limit < UNLIMITED else None


class PromptReader:
    """One pipeline call: its prompts by the request's fields, and the readings of its tokenizers."""

    def __init__(self, prompts: Mapping[str, str], mode: LongPrompt) -> None:
        self.mode = mode
        self._prompts = {field: text for field, text in prompts.items() if text.strip()}
        self._read: list[tuple[Reading, Measure | None]] = []
        self._pieces: dict[tuple[str, str], int] = {}  # tokens of a prompt that a pipeline splits, by encoder
        self._window: int | None = None
        self._inside = False  # of a tokenizer's own call

    def found(self) -> dict[str, Any]:
        """Return, for the answer, `prompt_tokens` and `negative_prompt_tokens`, of the encoder that reads most. Where
        encoders differ, `encoders` has the numbers of each: a part that one cuts off is lost only if all do."""
        readings = [reading for reading, _ in self._read]
        by_field = {field: _by_encoder(readings, text) for field, text in self._prompts.items()}
        return {f"{field}_tokens": _token_counts(found) for field, found in by_field.items() if found}

    def require_whole(self) -> None:
        """Refuse a cut prompt in the mode "refuse", before the denoiser's first pass. Raises PromptTooLong."""
        readings = [reading for reading, _ in self._read]
        for field, text in self._prompts.items() if self.mode == "refuse" else ():
            if (found := _by_encoder(readings, text)) and (most := _least_cut(found)).cut:
                raise PromptTooLong(field, most.used + most.cut, most.used)

    def add(self, readings: Sequence[Reading]) -> None:
        """Add the readings of embeddings that were kept."""
        self._read += [(reading, None) for reading in readings]

    def gather(
        self, encode: Callable[[], Any], length: int | None, is_cut: Callable[[Any], bool]
    ) -> tuple[Any, tuple[Reading, ...]]:
        """Return the result of `encode`, and the readings that were made for it. `length`: the most tokens of the
        result, by which some classes cut the tokens that they have; `is_cut` tells whether the result may be cut."""
        before, self._read = self._read, []
        try:
            result = encode()
            readings = [_within(reading, measure, length, is_cut(result)) for reading, measure in self._read]
            return result, tuple(readings)
        finally:
            self._read = before

    def in_windows(self, encode: Callable[[], Any]) -> list[Any]:
        """Encode the prompts window by window, each of as many tokens as an encoder reads at once, and return the
        results. The last windows of a shorter prompt are empty."""
        results = [encode()]
        count = max((-(-(each.used + each.cut) // each.of) for each, _ in self._read if each.of), default=1)
        count = min(count, MAX_WINDOWS)
        read, self._read = self._read, []
        for window in range(1, count):
            self._window = window
            results.append(encode())
        self._window = None
        for reading, measure in read:
            if reading.of and measure is not None:
                reading = replace(measure.cut_to(reading, reading.of * MAX_WINDOWS), windows=count)
            self._read.append((reading, measure))
        return results

    def tokenize(self, encoder: Encoder, text: Any, options: Mapping[str, Any]) -> Any:
        """Call the tokenizer. A prompt that is too long for its place in a template is cut before it goes into it, so
        that the template's end stays."""
        texts = [text] if isinstance(text, str) else list(text)
        limit = encoder.limit(options)
        outer, self._inside = self._inside, True
        try:
            if self._window is not None and limit is not None:
                return _window(encoder, texts, self._window, limit, options)
            if self._window is None and all(isinstance(each, str) for each in texts):
                special = bool(options.get("add_special_tokens", True))
                fitted = [self._fit(encoder, each, limit, special=special) for each in texts]
                text = fitted[0] if isinstance(text, str) else fitted
            return encoder.call(encoder.tokenizer, text, **options)
        finally:
            self._inside = outer

    def pad(self, encoder: str, length: int | None) -> None:
        """Record that a pipeline has cut a text that it put together of pieces to this length: its tokenizer pads
        it."""
        if self._inside or length is None:
            return
        for name, prompt in [key for key in self._pieces if key[0] == encoder]:
            tokens = self._pieces.pop((name, prompt))
            used = min(tokens, length)
            self._read.append((Reading(prompt, encoder, used, length, tokens - used), None))
        for index, (reading, measure) in enumerate(self._read):  # it had one piece
            if reading.encoder == encoder and reading.of is None and measure is not None:
                self._read[index] = measure.cut_to(reading, length), measure

    def _fit(self, encoder: Encoder, text: str, limit: int | None, *, special: bool) -> str:
        """Return the text. Its prompt is cut if the text goes on after it and that end would be cut off."""

        def count(part: str) -> int:
            return len(encoder.ids(part, special=special))

        prompts = tuple(self._prompts.values())
        if (place := find_prompt(text, prompts)) is None:
            if (whole := find_containing_prompt(text, prompts)) is not None:
                key = encoder.name, whole
                self._pieces[key] = self._pieces.get(key, 0) + count(text)
            return text
        total = count(text)
        measure = Measure(count, place, min(total, count(place.head + place.tail)))
        reading = Reading(place.whole, encoder.name, total - measure.fixed, None)
        if limit is not None:
            reading = measure.cut_to(reading, max(0, limit - measure.fixed))
        self._read.append((reading, measure))
        if limit is None or total <= limit or not place.tail:
            return text
        return place.head + place.prompt[: measure.fitting_chars(limit)] + place.tail


_current: ContextVar[PromptReader | None] = ContextVar("prompt_reader", default=None)


@contextmanager
def reading(prompts: Mapping[str, str], mode: LongPrompt) -> Iterator[PromptReader]:
    """Watch the tokenizers of the pipeline call within, on this thread."""
    reader = PromptReader(prompts, mode)
    token = _current.set(reader)
    try:
        yield reader
    finally:
        _current.reset(token)


def current_reader() -> PromptReader:
    """Return the reader of this pipeline call; outside of one, a reader that looks for no prompt."""
    return _current.get() or PromptReader({}, "tell")


def watch(components: Mapping[str, Any]) -> None:
    """Let readers watch a loaded checkpoint's tokenizers. They cut at the end of a text: some are published with
    `truncation_side = "left"`, which drops the beginning of a prompt."""
    for name, part in components.items():
        tokenizer = getattr(part, "tokenizer", part)  # a processor has one
        if isinstance(tokenizer, PreTrainedTokenizerBase):
            tokenizer.truncation_side = "right"
            _watch(name, tokenizer)


def require_whole_prompts(denoiser: torch.nn.Module) -> None:
    """End a run whose prompt was cut and must not be before its first step, and before it meets others in a pass: call
    this after what lets runs share passes."""

    def require(call: Call) -> Call:
        def answer(*positional: Any, **named: Any) -> Any:
            current_reader().require_whole()
            return call(*positional, **named)

        return answer

    wrap_calls(denoiser, require)


def _watch(name: str, tokenizer: Any) -> None:
    kind = type(tokenizer)

    def call(self: Any, text: Any = None, *positional: Any, **options: Any) -> Any:
        reader = _current.get()
        if reader is None or text is None or positional:
            return kind.__call__(self, text, *positional, **options)
        return reader.tokenize(Encoder(name, self, kind.__call__), text, options)

    def pad(self: Any, *positional: Any, **options: Any) -> Any:
        current_reader().pad(name, options.get("max_length"))
        return kind.pad(self, *positional, **options)

    # a subclass of the same name, since pipelines and the library ask for the class
    members = {"__module__": kind.__module__, "__call__": call, "pad": pad}
    tokenizer.__class__ = type(kind.__name__, (kind,), members)


def _window(encoder: Encoder, texts: Sequence[str], window: int, limit: int, options: Mapping[str, Any]) -> Any:
    """Return the tokens of one window of each text, between CLIP's two special ones, padded."""
    start, *end = encoder.ids("", special=True)
    size = limit - 1 - len(end)
    parts = [encoder.ids(text, special=False)[window * size :][:size] for text in texts]
    rows = {"input_ids": [[start, *part, *end] for part in parts]}
    return encoder.tokenizer.pad(
        rows, padding="max_length", max_length=limit, return_tensors=options.get("return_tensors")
    )


def _within(reading: Reading, measure: Measure | None, length: int | None, may_be_cut: bool) -> Reading:
    """Return a reading with the tokens that were cut off the embeddings, where those are more than the tokenizer
    cut."""
    if length is None or reading.of is None or measure is None:
        return reading
    if reading.used <= length:
        return replace(reading, of=min(reading.of, length))
    return measure.cut_to(reading, length) if may_be_cut else reading


def loses_text(readings: Sequence[Reading]) -> bool:
    """Return whether there is a text of which every encoder cuts something off."""
    return any(_least_cut(_by_encoder(readings, text)).cut for text in {reading.text for reading in readings})


def _by_encoder(readings: Sequence[Reading], text: str) -> dict[str, Reading]:
    """Return each encoder's reading of a text: where it tokenizes the text more than once, the one with a limit
    counts."""
    of_text = [reading for reading in readings if reading.text == text]
    return {each.encoder: each for each in sorted(of_text, key=lambda each: (each.of is not None, each.cut))}


def _least_cut(found: Mapping[str, Reading]) -> Reading:
    """Return the reading of the encoder that reads the largest part, of those the one with most room."""

    def rank(each: Reading) -> tuple[float, int]:
        return each.used / max(1, each.used + each.cut), UNLIMITED if each.of is None else each.of

    return max(found.values(), key=rank)


def _token_counts(found: Mapping[str, Reading]) -> dict[str, Any]:
    best, each = _least_cut(found).numbers(), {name: reading.numbers() for name, reading in found.items()}
    return best if all(numbers == best for numbers in each.values()) else {**best, "encoders": each}
