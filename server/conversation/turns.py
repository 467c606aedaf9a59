"""A conversation, and the messages of a chat completion that tell it. Pure.

Each protocol has a reader that makes turns and results of its body; what becomes of them is said here alone: texts in
parts are one text, thoughts are lines, an image of the model is a mark, a result stands by its call's id.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.protocol.chat import join_texts

Json = dict[str, Any]
MARK = "[image]"  # in an image's place: a model may say that it saw none


class CallIds:
    """The calls of one conversation, in their order. `waiting` are the ids of those that have no result so far."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self._names: dict[str, str] = {}  # of the functions, by the calls' ids

    def called(self, call_id: str | None, name: str) -> str:
        """Return the id of a call, which gets one if it was sent without."""
        if not call_id:
            numbered = (f"call_{number}" for number in itertools.count(len(self._names)))
            call_id = next(one for one in numbered if one not in self._names)
        self._names[call_id] = name
        self.waiting.append(call_id)
        return call_id

    def waits(self, call_id: str | None, name: str | None) -> bool:
        """Return whether a call waits for this result."""
        return any(one == call_id if call_id else self._names[one] == name for one in self.waiting)

    def answered(self, call_id: str | None, name: str | None) -> str:
        """Return the id of the call that a result answers. Without an id, that is the first call of its function that
        waits, or the first of all; then the newest of its function."""
        if not call_id:
            own = [one for one in self.waiting if self._names[one] == name]
            earlier = [one for one in reversed(self._names) if self._names[one] == name]
            call_id = next(iter((*own, *([] if earlier else self.waiting), *earlier)), f"call_{name}")
        if call_id in self.waiting:
            self.waiting.remove(call_id)
        return call_id


@dataclass(frozen=True, slots=True)
class Image:
    """An image. `origin` is what its reader knows it by, beside the URL that the messages have."""

    url: str
    origin: Any = None


Block = str | Image


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function: its arguments are JSON, if the model has written it well."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What somebody said. Only the assistant thinks and calls."""

    role: Literal["system", "developer", "user", "assistant"]
    blocks: Sequence[Block] = ()
    thoughts: Sequence[str] = ()
    calls: Sequence[Call] = ()
    name: str | None = None  # of a person


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool returned to the call of this id; without one, to a call of the function of this name."""

    blocks: Sequence[Block]
    call_id: str | None = None
    name: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """The messages of a chat completion, and the origins of their image_url parts, in order."""

    messages: list[Json]
    origins: list[Any]


def write(conversation: Iterable[Turn | Result], *, drawn: bool = False) -> Written:
    """Return the messages of a conversation. `drawn`: images of the assistant are its `images`, where they may be
    drawn upon; else marks stand for them."""
    written, ids, told = Written([], []), CallIds(), list[Result]()
    for said in conversation:
        if isinstance(said, Turn):
            message = _assistant(said, ids, drawn=drawn) if said.role == "assistant" else _said(said, written.origins)
        elif not ids.waits(said.call_id, said.name) and said in told:
            continue  # a session that Gemini CLI resumes has its results twice
        else:
            told.append(said)
            message = _result(said, ids, written.origins)
        written.messages.append(message)
    return written


def _said(turn: Turn, origins: list[Any]) -> Json:
    named = {"name": turn.name} if turn.name is not None else {}
    return {"role": turn.role, "content": _content(turn.blocks, origins), **named}


def _assistant(turn: Turn, ids: CallIds, *, drawn: bool) -> Json:
    images = [each for each in turn.blocks if isinstance(each, Image)] if drawn else []
    texts = [each if isinstance(each, str) else MARK for each in turn.blocks if each not in images]
    text, thoughts = join_texts(texts), "\n".join(filter(None, turn.thoughts))
    calls = [
        {
            "id": ids.called(call.id, call.name),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in turn.calls
    ]
    message: Json = {"role": "assistant", "content": text or (None if calls else "")}
    message |= {"name": turn.name} if turn.name is not None else {}
    message |= {"tool_calls": calls} if calls else {}
    message |= {"reasoning_content": thoughts} if thoughts else {}
    return message | ({"images": [_image_part(image) for image in images]} if images else {})


def _result(result: Result, ids: CallIds, origins: list[Any]) -> Json:
    content = _content(["error: ", *result.blocks] if result.failed else result.blocks, origins)
    return {"role": "tool", "tool_call_id": ids.answered(result.call_id, result.name), "content": content}


def _content(blocks: Sequence[Block], origins: list[Any]) -> str | list[Json]:
    """Return the texts as one; with images, as parts around them."""
    if all(isinstance(each, str) for each in blocks):
        return join_texts(str(each) for each in blocks)
    return list(_parts(blocks, origins))


def _parts(blocks: Sequence[Block], origins: list[Any]) -> Iterator[Json]:
    texts: list[str] = []
    for each in (*blocks, None):
        if isinstance(each, str):
            texts.append(each)
            continue
        if text := join_texts(texts):
            yield {"type": "text", "text": text}
        texts = []
        if each is not None:
            origins.append(each.origin)
            yield _image_part(each)


def _image_part(image: Image) -> Json:
    return {"type": "image_url", "image_url": {"url": image.url}}
