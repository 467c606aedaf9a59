"""Whose answer is written next where a model writes one at a time."""

import threading
from types import SimpleNamespace
from typing import cast

import pytest

from pipelines.chat.loading.checkpoint import ChatCheckpoint
from pipelines.chat.steps.detokenize import ChoiceOutput
from pipelines.chat.steps.sampling import SamplerState
from pipelines.chat.steps.sequence import Request, Sequence
from pipelines.chat.steps.sequential import SequentialGenerator
from pipelines.protocol.chat import ChatJob, ChatSampling


def sequence(owner: str, prompt_tokens: int) -> Sequence:
    job = cast(ChatJob, SimpleNamespace(time_limit_s=60.0, tier="default", owner=owner))
    prompt = (0,) * prompt_tokens
    request = Request(job, cast(ChatCheckpoint, None), prompt, {}, lambda event: None, open_choices=1)
    output = cast(ChoiceOutput, SimpleNamespace(finish_reason=None))
    return Sequence(request, 0, SamplerState(ChatSampling(), 0), output, None, 8, tokens=list(prompt))


def test_keys_take_turns_by_the_tokens_that_they_have_got(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    begin = threading.Event()

    def generate(_: SequentialGenerator, sequence: Sequence) -> None:
        begin.wait(60)
        written.append(sequence.owner)
        sequence.tokens += [0] * 2

    monkeypatch.setattr(SequentialGenerator, "_generate", generate)
    checkpoint = cast(ChatCheckpoint, SimpleNamespace(device=SimpleNamespace(type="cpu")))
    generator = SequentialGenerator(checkpoint, threads=1)
    for owner, length in [("hog", 40)] * 6 + [("guest", 10)] * 6:
        generator.add(sequence(owner, length))
    begin.set()
    generator.close()
    generator.join()
    assert "".join(owner[0] for owner in written) == "hggghggghhhh", "each in the measure of its tokens"
