"""Sampling options for tiny checkpoints, and helpers that run chat jobs and read their events."""

import string
from collections.abc import Callable

from pipelines.chat.engine import ChatEngine
from pipelines.protocol.chat import ChatEvent, ChatJob, ChatSampling, CountJob, TextDelta, ToolCallDelta
from starters.chat.tokens import make_tokenizer
from tests.support import tiny_chat_checkpoints as tiny

MAKERS = {
    "qwen": tiny.make_qwen,
    "endless": tiny.make_endless,
    "llama": tiny.make_llama,
    "llama3": tiny.make_llama3,
    "mistral": tiny.make_mistral,
    "llava": tiny.make_llava,
}
GREEDY = ChatSampling(temperature=0.0)
TOKENIZER = make_tokenizer([])  # of every tiny checkpoint
LETTER_IDS = {letter: TOKENIZER.convert_tokens_to_ids(letter) for letter in string.ascii_lowercase}
Job = Callable[..., ChatJob]


def letters(vocab_size: int = len(TOKENIZER)) -> ChatSampling:
    """Greedy, with all tokens but lower-case letters banned: text of `max_tokens` characters, whatever the weights."""
    others = set(range(vocab_size)) - set(LETTER_IDS.values())
    return ChatSampling(temperature=0.0, logit_bias=dict.fromkeys(others, -100.0))


async def run(engine: ChatEngine, job: ChatJob | CountJob) -> list[ChatEvent]:
    return [event async for event in engine.submit(job)]


def text(events: list[ChatEvent], choice: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.choice == choice)


def calls(events: list[ChatEvent]) -> list[tuple[str | None, str]]:
    """Name and arguments of every call."""
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    names = {delta.index: delta.name for delta in deltas if delta.name is not None}
    assert [delta.name is not None for delta in deltas] == [
        delta.index not in [earlier.index for earlier in deltas[:i]] for i, delta in enumerate(deltas)
    ]
    return [
        (name, "".join(delta.arguments for delta in deltas if delta.index == index)) for index, name in names.items()
    ]
