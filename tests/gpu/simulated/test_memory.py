"""Loading when the device has less memory than the budget says, since other programs have taken it."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.chat.engine import ChatEngine
from pipelines.checkpoints.errors import RETRY_AFTER_S, CheckpointError, MemoryTaken
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.memory import host_bytes as host_module
from pipelines.checkpoints.memory.device_bytes import component_bytes, device_bytes
from pipelines.checkpoints.memory.host_bytes import host_bytes
from pipelines.device.memory import Budgets, free_memory
from pipelines.images.engine import ImageEngine
from pipelines.images.loading.checkpoint_cache import HOST, InsufficientMemory
from pipelines.protocol.chat import ChatSpec
from pipelines.protocol.images import CheckpointSpec, Failed, Lora, Runtime
from tests.gpu.conftest import draw
from tests.gpu.simulated.conftest import Part, daily_and
from tests.simulated_gpu import device
from tests.support.image_jobs import image_job
from tests.support.tiny_chat_checkpoints import make_qwen

pytestmark = pytest.mark.usefixtures("empty_gpu")
GPU = torch.device("cuda")
GENEROUS = Budgets(2**34, 2**34, 2**30)


@contextmanager
def others_take_all_but(gpu: Any, left: int) -> Iterator[None]:
    torch.cuda.empty_cache()
    gpu.set_taken(0, torch.cuda.mem_get_info()[0] - left)
    try:
        yield
    finally:
        gpu.set_taken(0, 0)


def other_than(spec: CheckpointSpec) -> CheckpointSpec:
    return replace(spec, name="other", version=1)


async def enlarge(engine: ImageEngine, spec: CheckpointSpec) -> None:
    """Let a loaded checkpoint take 24 MiB more than its files say."""
    checkpoint = await engine.load(spec)
    checkpoint.denoiser.register_buffer("large", torch.zeros(24 * 2**20, dtype=torch.uint8, device=GPU))


async def test_a_load_evicts_what_idles_when_the_device_is_full(flux: CheckpointSpec, gpu: Any) -> None:
    engine = ImageEngine(GPU, GENEROUS)
    await enlarge(engine, flux)
    with others_take_all_but(gpu, 200_000):
        assert len(await draw(engine, image_job(other_than(flux)))) == 1


async def test_a_load_waits_for_the_runs_that_have_the_memory(flux: CheckpointSpec, gpu: Any) -> None:
    engine = ImageEngine(GPU, GENEROUS)
    await enlarge(engine, flux)
    loaded = engine._cache.find(flux)
    assert loaded is not None
    engine._cache.acquire(loaded)
    with others_take_all_but(gpu, 20_000):  # the text encoders are there already
        used = torch.cuda.memory_allocated()
        with pytest.raises(InsufficientMemory):
            await engine._cache.load(other_than(flux))
        assert torch.cuda.memory_allocated() == used
        engine._cache.release(loaded)
        del loaded
        await engine.load(other_than(flux))


async def test_a_load_that_never_fits_leaves_nothing_behind(flux: CheckpointSpec, gpu: Any) -> None:
    engine = ImageEngine(GPU, GENEROUS)
    gc.collect()
    used = torch.cuda.memory_allocated()
    with others_take_all_but(gpu, 20_000):  # text encoders may be there already
        with pytest.raises(MemoryTaken):
            await engine.load(flux)
        assert torch.cuda.memory_allocated() <= used
        assert torch.cuda.mem_get_info()[0] >= 20_000
    assert len(await draw(engine, image_job(flux))) == 1


async def test_a_checkpoint_that_does_not_come_back_is_whole_on_the_host(flux: CheckpointSpec, gpu: Any) -> None:
    engine = ImageEngine(GPU, GENEROUS)
    (before,) = await draw(engine, image_job(flux))
    await engine._cache.free_memory()
    with others_take_all_but(gpu, 200_000), pytest.raises(MemoryTaken):
        await engine.load(flux)
    held = next(iter(engine._cache._loaded.values()))
    modules = [each for each in held.checkpoint.components.values() if isinstance(each, torch.nn.Module)]
    assert {weight.device for module in modules for weight in module.parameters()} == {HOST}
    assert np.array_equal((await draw(engine, image_job(flux)))[0], before)


async def load_anew(spec: CheckpointSpec, gpu: Any, nth: int) -> int:
    """Return how many allocations a load made whose n-th one failed."""
    engine, begin = ImageEngine(GPU, GENEROUS), gpu.allocations()
    gpu.fail_allocation(nth)
    await engine.load(spec)
    made = gpu.allocations() - begin
    gpu.fail_allocation(-1)
    engine.close()
    return int(made)


@pytest.mark.parametrize("part", daily_and(4))
async def test_a_load_goes_on_after_any_allocation_that_fails_once(flux: CheckpointSpec, gpu: Any, part: Part) -> None:
    total = await load_anew(flux, gpu, -1)
    gc.collect()
    used = torch.cuda.memory_allocated()
    for nth in range(part[0] + 1, total + 1, part[1]):
        assert await load_anew(flux, gpu, nth) > total
        gc.collect()
        assert torch.cuda.memory_allocated() <= used


@pytest.mark.parametrize("part", daily_and(4))
async def test_an_image_is_the_same_after_any_allocation_that_fails_once(
    flux: CheckpointSpec, gpu: Any, part: Part
) -> None:
    engine, job = ImageEngine(GPU, GENEROUS), image_job(flux, steps=2)
    await draw(engine, job)
    begin = gpu.allocations()
    (expected,) = await draw(engine, job)
    total = gpu.allocations() - begin
    for nth in range(part[0] + 1, total + 1, part[1]):
        gpu.fail_allocation(nth)
        assert np.array_equal((await draw(engine, job))[0], expected)
        gpu.fail_allocation(-1)


async def test_a_preview_reads_the_schedule_once(flux: CheckpointSpec) -> None:
    engine = ImageEngine(GPU, GENEROUS)
    await draw(engine, image_job(flux, id="first", steps=6))
    device.log.take()
    await draw(engine, image_job(flux, id="previews", steps=6, previews=1))
    waits = device.log.waits()
    assert sum(count for (_, place), count in waits.items() if "noise_schedule" in place) <= 1


@pytest.mark.parametrize("kind", ["option", "adapter", "chat"])
async def test_a_load_that_fails_with_its_weights_on_the_device_gives_all_back(
    kind: str, flux: CheckpointSpec, tmp_path: Path
) -> None:
    engine: ImageEngine | ChatEngine
    if kind == "chat":
        engine, spec = ChatEngine(GPU), ChatSpec("qwen", make_qwen(tmp_path / "qwen"))
        (spec.path / "chat_template.jinja").unlink()
    else:
        absent = Lora(tmp_path / "absent.safetensors")
        runtime = Runtime(attention="none such") if kind == "option" else Runtime(loras=(absent,))
        engine, spec = ImageEngine(GPU, GENEROUS), replace(flux, runtime=runtime)
    free_memory(GPU)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    with pytest.raises(CheckpointError):
        await engine.load(spec)  # type: ignore[arg-type]
    assert torch.cuda.max_memory_reserved() > before
    assert torch.cuda.memory_reserved() <= before


async def test_a_gpu_that_another_program_had_at_the_start_is_used_once_it_is_free(
    flux: CheckpointSpec, gpu: Any
) -> None:
    gpu.set_taken(0, int(torch.cuda.mem_get_info()[1] * 0.85))
    try:
        engine = ImageEngine(GPU, Budgets.of(GPU))
        engine.unload_except([flux])
        (*_, last) = [event async for event in engine.submit(image_job(flux))]
        assert isinstance(last, Failed)
        assert (last.code, last.retry_after_s) == ("memory_taken", RETRY_AFTER_S)
        assert "other programs have 68.0 of the GPU's 80.0 GiB" in last.detail
        with pytest.raises(MemoryTaken, match="other programs have"):
            await engine.prepare(flux)
    finally:
        gpu.set_taken(0, 0)
    assert len(await draw(engine, image_job(flux))) == 1
    assert engine._cache.find(flux) is not None, "it stays for the next call"
    assert not (await engine.prepare(flux)).failed_checks


async def test_a_program_that_comes_later_is_no_reason_to_fail_what_is_loaded(flux: CheckpointSpec, gpu: Any) -> None:
    engine = ImageEngine(GPU, Budgets.of(GPU))
    await draw(engine, image_job(flux))
    gpu.set_taken(0, int(torch.cuda.mem_get_info()[1] * 0.85))
    try:
        assert len(await draw(engine, image_job(flux))) == 1
        with pytest.raises(MemoryTaken):
            await engine.load(other_than(flux))
    finally:
        gpu.set_taken(0, 0)
    assert len(await draw(engine, image_job(other_than(flux)))) == 1


def host_needed(spec: CheckpointSpec) -> int:
    """Return the bytes that the checkpoint takes on the host where all of it waits there, page-locked."""
    return host_bytes(component_bytes(CheckpointFiles.of(spec), 2, "none"), Runtime(offload="group"))


@pytest.mark.parametrize("page_lock", [True, False])
async def test_weights_that_wait_on_the_host_are_page_locked_if_it_has_room(
    page_lock: bool, flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    (expected,) = await draw(ImageEngine(GPU, GENEROUS), image_job(flux))
    offloaded = replace(flux, runtime=Runtime(offload="group"))
    monkeypatch.setattr(host_module, "rounded_below_bytes", lambda: float("inf"))  # as of a torch before 2.13
    needed = host_needed(offloaded)
    engine = ImageEngine(GPU, replace(GENEROUS, offload_bytes=needed if page_lock else needed - 1))
    checkpoint = await engine.load(offloaded)
    weights = list(checkpoint.denoiser.parameters())
    assert {weight.is_pinned() for weight in weights} == {page_lock}
    assert checkpoint.runtime.page_lock is page_lock
    assert page_lock or any("without page-locked copies" in note for note in checkpoint.notes)
    assert np.array_equal((await draw(engine, image_job(offloaded)))[0], expected)
    assert np.array_equal((await draw(engine, image_job(offloaded)))[0], expected)


@pytest.mark.parametrize("auto", [True, False])
async def test_a_driver_that_page_locks_little_slows_a_checkpoint_and_does_not_refuse_it(
    auto: bool, flux: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under WSL, where some hundred MiB may be page-locked however much memory there is."""
    locked, limit, page_lock = [0], max(component_bytes(CheckpointFiles.of(flux), 2, "none")["transformer"]) * 4, []
    pin = torch.Tensor.pin_memory

    def release(size: int) -> None:
        locked[0] -= size

    def lock(weight: torch.Tensor, *arguments: Any) -> torch.Tensor:
        if locked[0] + weight.nbytes > limit:
            page_lock.append(False)
            raise torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'")
        locked[0] += weight.nbytes
        made = pin(weight, *arguments)
        weakref.finalize(made.untyped_storage(), release, weight.nbytes)
        return made

    (expected,) = await draw(ImageEngine(GPU, GENEROUS), image_job(flux))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lock)
    spec = replace(flux, runtime=Runtime(auto=True) if auto else Runtime(offload="group"))
    least = device_bytes(component_bytes(CheckpointFiles.of(flux), 2, "float8"), "group")
    engine = ImageEngine(GPU, replace(GENEROUS, device_bytes=least) if auto else GENEROUS)
    checkpoint = await engine.load(spec)
    assert page_lock
    assert (checkpoint.runtime.offload, checkpoint.runtime.page_lock) == ("group", False)
    assert any("the driver refuses so much page-locked memory" in note for note in checkpoint.notes)
    (drawn,) = await draw(engine, image_job(spec))
    assert auto or np.array_equal(drawn, expected)  # auto quantizes


@pytest.mark.parametrize("auto", [True, False])
async def test_what_fits_neither_memory_is_refused_with_both_numbers(auto: bool, flux: CheckpointSpec) -> None:
    spec = replace(flux, runtime=Runtime(auto=True) if auto else Runtime(offload="group"))
    engine = ImageEngine(GPU, Budgets(1000, 0, 2**30, offload_bytes=2000))
    with pytest.raises(
        CheckpointError, match=r"GiB of the device and .* GiB of the host, and the device's budget .* h"
    ):
        await engine.load(spec)


async def test_offloaded_checkpoints_leave_the_host_to_the_next(flux: CheckpointSpec) -> None:
    first = replace(flux, runtime=Runtime(offload="group"))
    engine = ImageEngine(GPU, replace(GENEROUS, offload_bytes=host_needed(first) + 1000))
    await engine.load(first)
    loaded = engine._cache.find(first)
    assert loaded is not None
    engine._cache.acquire(loaded)
    with pytest.raises(InsufficientMemory):
        await engine._cache.load(other_than(first))
    engine._cache.release(loaded)
    await engine.load(other_than(first))
    assert engine._cache.find(first) is None


async def test_a_chat_model_says_who_has_its_memory_and_loads_once_they_have_left(gpu: Any, tmp_path: Path) -> None:
    engine, spec = ChatEngine(GPU), ChatSpec("qwen", make_qwen(tmp_path / "qwen"))
    with others_take_all_but(gpu, 2000), pytest.raises(MemoryTaken, match="other programs have"):
        await engine.prepare(spec)
    await engine.prepare(spec)
