"""The chat worker as the server meets it: a process that may die."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.protocol.chat import ChatEvent, ChatFinished, ChatJob, ChatSpec, TextDelta
from pipelines.protocol.images import Failed
from server.backends.engine_host import EngineHost, HostLimits
from tests.engines.chat_jobs import Job, letters
from tests.support.tiny_chat_checkpoints import make_qwen

Host = EngineHost[ChatJob, ChatEvent]


@pytest.fixture
async def host(chat_job: Job) -> AsyncIterator[Host]:
    started: Host = EngineHost(
        "chat", [chat_job().checkpoint, ChatSpec("gone", chat_job().checkpoint.path / "no")], HostLimits(8)
    )
    await started.start()
    yield started
    await started.stop()


@pytest.mark.nightly
async def test_a_killed_worker_fails_its_jobs_and_the_next_one_answers(host: Host, chat_job: Job) -> None:
    await host.wait_ready()
    assert {spec.name: state.state for spec, state in host.checkpoints.items()} == {"qwen": "loaded", "gone": "failed"}
    events: list[ChatEvent] = []
    killed = False
    async for event in host.submit(chat_job(model="endless", max_tokens=10**6, sampling=letters())):
        events.append(event)
        if isinstance(event, TextDelta) and not killed:
            assert host.status.pid is not None
            os.kill(host.status.pid, signal.SIGKILL)
            killed = True
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "worker_died"
    again = await asyncio.wait_for(_all(host, chat_job()), 240)
    assert isinstance(again[-1], ChatFinished)


@pytest.mark.nightly
async def test_the_server_is_told_what_a_models_files_have_too_much(tmp_path: Path) -> None:
    specs = [ChatSpec(name, make_qwen(tmp_path / name)) for name in ("more", "less")]
    file = specs[0].path / "model.safetensors"
    save_file(load_file(file) | {"mtp.norm.weight": torch.ones(4)}, file, {"format": "pt"})
    file = specs[1].path / "model.safetensors"
    save_file({n: w for n, w in load_file(file).items() if n != "model.norm.weight"}, file, {"format": "pt"})
    host: Host = EngineHost("chat", specs, HostLimits(8))
    await host.start()
    try:
        await host.wait_ready()
        details = {spec.name: (state.state, state.detail) for spec, state in host.checkpoints.items()}
    finally:
        await host.stop()
    note = "model: 1 weight of its files is not needed, such as mtp.norm.weight"
    assert details["more"] == ("loaded", f"{specs[0].path}; {note}")
    lacks = "model: 1 weight is not in its files, such as model.norm.weight"
    assert details["less"] == ("failed", f"{specs[1].path}: {lacks}")


async def _all(host: Host, job: ChatJob) -> list[ChatEvent]:
    return [event async for event in host.submit(job)]
