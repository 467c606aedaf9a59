"""How many threads a chat model's steps are computed on."""

import time
from collections.abc import Iterator

import pytest
import torch

from pipelines.chat.checkpoint import ChatCheckpoint, load_chat
from pipelines.chat.cpu_threads import LONG_S, fewest_threads
from pipelines.chat.model_runner import BatchForward
from pipelines.protocol.chat import ChatSpec
from tests.support.tiny_chat_checkpoints import make_qwen


class Timed(BatchForward):
    """A model whose steps take as long as is said, on so many threads."""

    def __init__(self, checkpoint: ChatCheckpoint, seconds: dict[int, float]) -> None:
        super().__init__(checkpoint, most_places=2**16)
        self.seconds, self.counts = seconds, set[int]()

    def step(self, tokens: list[int], lengths: list[int]) -> torch.Tensor:
        self.counts.add(torch.get_num_threads())
        time.sleep(self.seconds[torch.get_num_threads()])
        return torch.zeros(len(tokens), 1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> ChatCheckpoint:
    folder = tmp_path_factory.mktemp("weights") / "qwen"
    make_qwen(folder)
    return load_chat(ChatSpec("qwen", folder), torch.device("cpu"))


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def test_a_step_that_more_threads_do_not_hasten_gets_one(checkpoint: ChatCheckpoint) -> None:
    assert fewest_threads(Timed(checkpoint, {1: 0.004, 2: 0.004, 4: 0.004}), checkpoint, 4) == 1


def test_a_step_gets_as_many_threads_as_hasten_it(checkpoint: ChatCheckpoint) -> None:
    assert fewest_threads(Timed(checkpoint, {1: 0.04, 2: 0.01, 4: 0.01}), checkpoint, 4) == 2


def test_long_steps_get_all_threads_and_are_not_tried_on_fewer(checkpoint: ChatCheckpoint) -> None:
    forward = Timed(checkpoint, {3: 2 * LONG_S})
    assert fewest_threads(forward, checkpoint, 3) == 3
    assert forward.counts == {3}
