"""Chat jobs for tiny checkpoints, and how to read what becomes of them."""

from collections.abc import Callable

from pipelines.chat.engine import ChatEngine
from pipelines.protocol.chat import ChatEvent, ChatJob, ChatSampling, CountJob, TextDelta, ToolCallDelta
from tests.support import tiny_chat_checkpoints as tiny

MAKERS = {
    "qwen": tiny.make_qwen,
    "llama": tiny.make_llama,
    "llama3": tiny.make_llama3,
    "mistral": tiny.make_mistral,
    "llava": tiny.make_llava,
}
GREEDY = ChatSampling(temperature=0.0)
Job = Callable[..., ChatJob]


async def run(engine: ChatEngine, job: ChatJob | CountJob) -> list[ChatEvent]:
    return [event async for event in engine.submit(job)]


def text(events: list[ChatEvent], choice: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.choice == choice)


def calls(events: list[ChatEvent]) -> list[tuple[str | None, str]]:
    """Name and arguments of every call."""
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    names = {delta.index: delta.name for delta in deltas if delta.name is not None}
    assert [delta.name is not None for delta in deltas] == [
        delta.index not in [earlier.index for earlier in deltas[:place]] for place, delta in enumerate(deltas)
    ]
    return [
        (name, "".join(delta.arguments for delta in deltas if delta.index == index)) for index, name in names.items()
    ]
