"""How many threads a chat model's steps are computed on."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from pipelines.chat.loading.checkpoint import ChatCheckpoint, load_chat
from pipelines.chat.model.kv_pages import Lease
from pipelines.chat.model.model_runner import ModelRunner
from pipelines.chat.steps.batched import LONG_STEP_S, choose_thread_count
from pipelines.protocol.chat import ChatSpec
from tests.support.tiny_chat_checkpoints import make_qwen

Chosen = Callable[[dict[int, float]], tuple[int, set[int]]]


class Timed(ModelRunner):
    """A model whose decode steps take `seconds[threads]` on a clock of its own."""

    def __init__(self, checkpoint: ChatCheckpoint, seconds: dict[int, float]) -> None:
        super().__init__(checkpoint.model, checkpoint.device, 100, checkpoint.batching.rules, capacity_tokens=2**16)
        self.seconds, self.counts, self.now = seconds, set[int](), 0.0

    def decode(self, tokens: Sequence[int], leases: Sequence[Lease], lengths: Sequence[int]) -> torch.Tensor:
        self.counts.add(torch.get_num_threads())
        self.now += self.seconds[torch.get_num_threads()]
        return torch.zeros(len(tokens), 1)

    def perf_counter(self) -> float:
        return self.now


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


@pytest.fixture
def chosen(checkpoint: ChatCheckpoint, monkeypatch: pytest.MonkeyPatch) -> Chosen:
    """The thread count chosen for such steps, out of as many threads as the largest key; and those that were tried."""

    def choose(seconds: dict[int, float]) -> tuple[int, set[int]]:
        runner = Timed(checkpoint, seconds)
        monkeypatch.setattr("pipelines.chat.steps.batched.time", runner)
        return choose_thread_count(runner, checkpoint, max(seconds)), runner.counts

    return choose


def test_a_step_that_more_threads_do_not_speed_up_gets_one(chosen: Chosen) -> None:
    assert chosen({1: 0.004, 2: 0.004, 4: 0.004}) == (1, {1, 2, 4})


def test_a_step_gets_as_many_threads_as_speed_it_up(chosen: Chosen) -> None:
    assert chosen({1: 0.04, 2: 0.01, 4: 0.01}) == (2, {1, 2, 4})


def test_long_steps_get_all_threads_and_are_not_tried_on_fewer(chosen: Chosen) -> None:
    assert chosen({3: 2 * LONG_STEP_S}) == (3, {3})
