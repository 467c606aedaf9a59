"""The choice of a kernel for attention, while checkpoints draw."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines import worker
from pipelines.chat.engine import ChatEngine
from pipelines.device import attention
from pipelines.device.attention import TORCH, AttentionChooser, ChoiceRecords
from pipelines.device.attention_kernels import AttentionCall, by_torch, plain_torch
from pipelines.images.engine import ImageEngine
from pipelines.protocol.chat import ChatJob, ChatSpec
from pipelines.protocol.images import CheckpointSpec, Runtime
from tests.engines.chat_jobs import letters, run, text
from tests.gpu.conftest import draw
from tests.support.image_jobs import image_job
from tests.support.tiny_chat_checkpoints import make_qwen

GPU = torch.device("cuda")


class Counted:
    """A kernel that is torch's, with its calls counted by dtype and heads."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        self.calls += 1
        return by_torch(call)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """The fastest kernel of all."""
    monkeypatch.setattr(attention, "TRIED_FLOP", 1.0)
    kernel = Counted()
    times = iter([1.0, 0.5] * 100)
    chooser = AttentionChooser(GPU, ChoiceRecords(tmp_path), {"counted": kernel}, lambda _: next(times))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", chooser)
    yield kernel
    assert all(choice.kernel == "counted" for choice in chooser.choices.values())


async def test_denoisers_and_encoders_compute_by_the_chosen_kernel(flux: CheckpointSpec, counted: Counted) -> None:
    chooser = torch.nn.functional.scaled_dot_product_attention
    (drawn,) = await draw(ImageEngine(GPU), image_job(flux, steps=2))
    assert counted.calls > len(chooser.choices) > 0  # type: ignore[attr-defined]
    torch.nn.functional.scaled_dot_product_attention = plain_torch
    (plain,) = await draw(ImageEngine(GPU), image_job(flux, steps=2))
    assert np.array_equal(drawn, plain)


async def test_what_a_catalog_file_names_computes_its_denoisers_attention(
    flux: CheckpointSpec, counted: Counted
) -> None:
    engine = ImageEngine(GPU)
    await draw(engine, image_job(flux, steps=1))
    one = counted.calls
    await draw(engine, image_job(flux, steps=3, id="more"))
    more = counted.calls - one
    named = ImageEngine(GPU)
    spec = replace(flux, runtime=Runtime(attention="native"))
    await draw(named, image_job(spec, steps=1))
    before = counted.calls
    await draw(named, image_job(spec, steps=3, id="more"))
    assert more > 0
    assert counted.calls == before  # its prompt is kept


async def test_a_worker_tries_what_torch_has_here(
    flux: CheckpointSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "TRIED_FLOP", 1.0)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", plain_torch)
    attention.choose_attention(GPU, tmp_path)
    await draw(ImageEngine(GPU), image_job(flux, steps=1))
    chooser = torch.nn.functional.scaled_dot_product_attention
    assert isinstance(chooser, AttentionChooser)
    assert chooser.choices
    for choice in chooser.choices.values():
        assert choice.times_ms[TORCH] > 0
        assert not choice.wrong
    assert count_records(tmp_path) == len(chooser.choices)


@pytest.mark.parametrize("kind", ["image", "chat", "classify"])
async def test_every_worker_tries_it(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", plain_torch)
    options = Namespace(
        kind=kind, checks=tmp_path, chat_cache_share=0.1, device_gib=None, host_gib=None, others_bytes=0,
        image_workers=1, devices=1,
    )  # fmt: skip
    worker._create_engine(options, GPU, lambda _: None)
    assert isinstance(torch.nn.functional.scaled_dot_product_attention, AttentionChooser)


async def test_a_wrong_kernel_answers_no_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named among the facts of the checkpoint, and chats are what they are without it."""

    def zeros(call: AttentionCall) -> torch.Tensor:
        return torch.zeros_like(call.query)

    monkeypatch.setattr(attention, "TRIED_FLOP", 1.0)
    make_qwen(tmp_path / "qwen")
    spec = ChatSpec("qwen", tmp_path / "qwen", dtype="float32")
    job = ChatJob(
        "one", spec, ({"role": "user", "content": "abc"},), seed=0, time_limit_s=240, max_tokens=8, sampling=letters()
    )
    plain = ChatEngine(GPU, cache_bytes=2**26)
    expected = text(await run(plain, job))
    await plain.sleep()
    chooser = AttentionChooser(GPU, ChoiceRecords(tmp_path), {"zeros": zeros}, lambda _: 1.0)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", chooser)
    engine = ChatEngine(GPU, cache_bytes=2**26)
    found = await engine.prepare(spec)
    assert any("attention by zeros is wrong here" in note for note in found.notes)
    assert text(await run(engine, job)) == expected
    await engine.sleep()


def count_records(folder: Path) -> int:
    return len(list(folder.rglob("*.json")))
