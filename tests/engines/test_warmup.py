"""Warmup and what it keeps: a checkpoint that was tried once draws one image, unless anything of it has changed."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.checkpoints.work.estimate import Timing
from pipelines.images.drawing import run
from pipelines.images.drawing.pipeline import ImagePipeline
from pipelines.images.engine import ImageEngine
from pipelines.images.scheduling.batching import CHECK_PREFIX
from pipelines.images.scheduling.row_limits import MIN_SAMPLES
from pipelines.images.warmup import check_records, warmup
from pipelines.protocol.images import CheckpointSpec, Finished, ImageJob, Runtime
from pipelines.protocol.messages import Capabilities
from tests.engines.device import DEVICE
from tests.engines.shared_passes import device_held
from tests.support.polling import eventually

Spec = Callable[[str], CheckpointSpec]
Job = Callable[..., ImageJob]


@pytest.fixture
def copied(spec: Spec, tmp_path: Path) -> CheckpointSpec:
    """A checkpoint that a test may change."""
    return replace(spec("sd"), path=Path(shutil.copytree(spec("sd").path, tmp_path / "copied")))


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[CheckpointSpec], Any]:
    """Prepare a checkpoint in an engine of its own, as a new worker does: its capabilities and how many images were
    tried."""

    async def in_new_engine(spec: CheckpointSpec) -> tuple[Capabilities, int]:
        engine = ImageEngine(DEVICE, checks=tmp_path / "probes")
        tried: list[str] = []
        submit = engine._warmup._submit
        monkeypatch.setattr(engine._warmup, "_submit", lambda job: tried.append(job.id) or submit(job))
        capabilities = await engine.prepare(spec)
        assert all(name.startswith(CHECK_PREFIX) for name in tried)
        return capabilities, len(tried)

    return in_new_engine


class Failing(ImagePipeline):
    """Fails to repaint under a mask."""

    error: Exception

    def draw(self) -> Any:
        if self.job.mask is not None:
            raise self.error
        return super().draw()


async def test_what_was_tried_once_is_not_tried_again(copied: CheckpointSpec, prepare: Any) -> None:
    first, tried = await prepare(copied)
    assert tried > 8
    again, one = await prepare(replace(copied, name="other name"))
    assert one == 1
    assert replace(again, unit_s=None) == replace(first, unit_s=None)
    assert again.unit_s == pytest.approx(first.unit_s)


async def change_a_config(spec: CheckpointSpec) -> CheckpointSpec:
    """With the size and the time that it had."""
    config = spec.path / "unet" / "config.json"
    before, text = config.stat(), config.read_text()
    config.write_text(text.replace('"_class_name"', '"_class_nam3"', 1))
    config.write_text(text.replace("\n", " ", 1))
    os.utime(config, ns=(before.st_atime_ns, before.st_mtime_ns))
    return spec


async def change_weights(spec: CheckpointSpec) -> CheckpointSpec:
    """A copy over them keeps the size and the time."""
    weights = next((spec.path / "vae").glob("*.safetensors"))
    shutil.copy2(shutil.copy2(weights, spec.path.parent / "aside"), weights)
    return spec


async def change_an_option(spec: CheckpointSpec) -> CheckpointSpec:
    return replace(spec, runtime=Runtime(vae_tiling=True))


async def change_sampling(spec: CheckpointSpec) -> CheckpointSpec:
    return replace(spec, sampling=replace(spec.sampling, guidance=1.5))


@pytest.mark.daily("change_weights")
@pytest.mark.parametrize("change", [change_a_config, change_weights, change_an_option, change_sampling])
async def test_a_changed_file_or_option_is_tried_anew(change: Any, copied: CheckpointSpec, prepare: Any) -> None:
    _, tried = await prepare(copied)
    assert (await prepare(await change(copied)))[1] == tried


@pytest.mark.nightly
async def test_another_library_or_other_code_here_is_tried_anew(
    copied: CheckpointSpec, prepare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tried = await prepare(copied)
    monkeypatch.setattr(check_records, "_version", lambda name: "0.37.0" if name == "diffusers" else "1")
    assert (await prepare(copied))[1] == tried
    monkeypatch.setattr(check_records, "_code", lambda: "other code")
    assert (await prepare(copied))[1] == tried


def test_the_reason_of_a_failure_is_not_the_advice_that_libraries_end_with() -> None:
    error = torch.AcceleratorError("CUDA error: no kernel image\nCompile it with assertions.\n")
    assert warmup._reason(error) == "torch.AcceleratorError: CUDA error: no kernel image"
    assert warmup._reason(ValueError()) == "ValueError"


@pytest.mark.daily("no kernel for masks-False")
@pytest.mark.parametrize(
    ("error", "tries_again"),
    [
        (RuntimeError("no kernel for masks"), False),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: invalid configuration argument"), True),
    ],
    ids=str,
)
async def test_a_failure_is_kept_with_its_reason_unless_it_was_of_the_moment(
    error: Exception, tries_again: bool, copied: CheckpointSpec, prepare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "error", error, raising=False)
    with monkeypatch.context() as broken:
        broken.setattr(run, "ImagePipeline", Failing)
        failed, _ = await prepare(copied)
    assert not failed.mask
    assert [each.what for each in failed.failed_checks] == ["a mask"]
    assert failed.failed_checks[0].why.endswith(str(error))
    again, tried = await prepare(copied)
    assert again.mask == tries_again
    assert (tried > 1) == tries_again
    assert again.failed_checks == (() if tries_again else failed.failed_checks)


@pytest.mark.nightly
async def test_what_no_longer_draws_is_tried_anew(
    copied: CheckpointSpec, prepare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kept outcomes are of another process: they count once an image was drawn in this one."""

    class Once(ImagePipeline):
        drawn = 0

        def draw(self) -> Any:
            Once.drawn += 1
            if Once.drawn == 1:
                raise RuntimeError("no kernel")
            return super().draw()

    _, tried = await prepare(copied)
    monkeypatch.setattr(run, "ImagePipeline", Once)
    assert (await prepare(copied))[1] == tried + 1


@pytest.mark.nightly
@pytest.mark.parametrize("unit_s", ["NaN", "Infinity", "1e999", '"fast"'])
async def test_a_record_of_no_numbers_is_written_anew(
    unit_s: str, copied: CheckpointSpec, prepare: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, tried = await prepare(copied)
    (record,) = (tmp_path / "probes").iterdir()
    kept = json.loads(record.read_text())["abilities"]["unit_s"]
    record.write_text(record.read_text().replace(f'"unit_s": {kept}', f'"unit_s": {unit_s}'))
    again, count = await prepare(copied)
    assert count == tried
    assert again.unit_s == pytest.approx(json.loads(record.read_text())["abilities"]["unit_s"])
    assert "can't be read, so the checkpoint is tried anew" in capfd.readouterr().err


@pytest.mark.daily("{")
@pytest.mark.parametrize("content", ["{", "{}", '{"abilities": {"text": true}}', "[]"])
async def test_a_record_that_cannot_be_read_is_written_anew(
    content: str, copied: CheckpointSpec, prepare: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, tried = await prepare(copied)
    (record,) = (tmp_path / "probes").iterdir()
    record.write_text(content)
    assert (await prepare(copied))[1] == tried
    assert "can't be read, so the checkpoint is tried anew" in capfd.readouterr().err
    assert json.loads(record.read_text())["abilities"]["text"] is True
    assert (await prepare(copied))[1] == 1


async def test_a_folder_that_cannot_be_written_fails_nothing(
    copied: CheckpointSpec, prepare: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "probes").write_text("a file in its place")
    assert (await prepare(copied))[0].text
    assert "can't be" in capfd.readouterr().err


async def test_an_image_that_comes_meanwhile_is_what_it_is_alone(copied: CheckpointSpec, job: Job) -> None:
    """As of a call that wakes a worker: both have passes of one shape, and wait for the device."""
    engine, spec = ImageEngine(DEVICE), replace(copied, native_area_px=32 * 32)
    await engine.load(spec)
    with device_held(engine):
        tried = asyncio.create_task(engine.prepare(spec))
        drawn = asyncio.create_task(finish(engine, job("sd", checkpoint=spec, width_px=32, height_px=32)))
        await eventually(lambda: len(engine._scheduler._waiting) == 2)
    assert not (await drawn).merged
    await tried


async def finish(engine: ImageEngine, job: ImageJob) -> Finished:
    last = [event async for event in engine.submit(job)][-1]
    assert isinstance(last, Finished), last
    return last


@pytest.mark.nightly
async def test_the_speed_of_the_last_run_is_known_at_the_next_start(
    copied: CheckpointSpec, job: Job, tmp_path: Path
) -> None:
    engine = ImageEngine(DEVICE, checks=tmp_path / "probes")
    first = await engine.prepare(copied)
    (record,) = (tmp_path / "probes").iterdir()
    assert first.unit_s is not None
    engine._speeds.begin_with(copied, 9.0)  # what another process has measured changes nothing now
    assert (await engine.prepare(copied)).unit_s == first.unit_s
    written = json.loads(record.read_text())
    written["abilities"]["unit_s"] = 1000.0  # as if the machine had been that slow: what is like the record is not kept
    record.write_text(json.dumps(written))
    engine = ImageEngine(DEVICE, checks=tmp_path / "probes")
    assert (await engine.prepare(copied)).unit_s == 1000.0
    measured = (await finish(engine, job("sd", checkpoint=copied, id="one"))).unit_s
    assert measured < 500.0
    await eventually(lambda: json.loads(record.read_text())["abilities"]["unit_s"] == measured)
    again = await ImageEngine(DEVICE, checks=tmp_path / "probes").prepare(copied)
    assert again.unit_s == measured
    assert again.mask


@pytest.mark.nightly
async def test_what_sharing_gains_is_known_at_the_next_start(copied: CheckpointSpec, job: Job, tmp_path: Path) -> None:
    engine = ImageEngine(DEVICE, checks=tmp_path / "probes")
    await engine.prepare(copied)
    steps = {"checkpoint": copied, "steps": MIN_SAMPLES}
    await finish(engine, job("sd", id="one", **steps))
    (shape,) = [shape for shape in engine._admission._limits._learned if shape.width_px == 64]
    for _ in range(MIN_SAMPLES):
        engine._admission._limits.record(shape, 2, 1e6)  # a pass of two that gains nothing
    await finish(engine, job("sd", id="two", **steps))
    records = tmp_path / "probes"
    await eventually(lambda: any("1000000.0" in file.read_text() for file in records.glob("*.passes.json")))
    again = ImageEngine(DEVICE, checks=records)
    await again.prepare(copied)
    assert again._admission._limits.of(shape) == 1
    (file,) = records.glob("*.passes.json")
    file.write_text('[{"rows": 0}]')
    unread = ImageEngine(DEVICE, checks=records)
    await unread.prepare(copied)
    assert unread._admission._limits.of(shape) != 1


async def test_the_first_guess_is_from_steps_of_several_sizes(
    copied: CheckpointSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Timing] = []

    def guess(timings: Iterable[Timing], units: float) -> float:
        seen.extend(timings)
        assert units == copied.native_area_px / 1e6
        return 7.5

    monkeypatch.setattr(warmup, "unit_s_at", guess)
    engine = ImageEngine(DEVICE)
    assert (await engine.prepare(copied)).unit_s == 7.5
    areas = {round(timing.units * 1e6) for timing in seen}  # 56 px wide, which estimates round to 64
    assert areas == {32 * 32, 32 * 64}, "of one step each, without those of two passes"
    assert all(timing.seconds > 0 for timing in seen)
