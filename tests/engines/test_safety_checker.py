"""Checkpoints with a safety checker of their own, as Stable Diffusion 1.5's folder has one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.checkpoints.errors import CheckpointError
from pipelines.images.engine import ImageEngine
from pipelines.images.scheduling.row_limits import RowLimits
from pipelines.protocol.images import CheckpointSpec, Failed, Finished
from tests.engines.conftest import left_half, plain_image
from tests.engines.device import DEVICE
from tests.engines.shared_passes import drawn, drawn_together, last_event
from tests.engines.test_families import family_spec
from tests.support.image_jobs import image_job
from tests.support.tiny_families import FAMILIES
from tests.support.tiny_families.unets import with_safety_checker

KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "reference": {"references": (plain_image(),)},
    "mask": {"references": (plain_image(),), "mask": left_half()},
    "tiles": {"width_px": 160, "height_px": 96},
}
Made = Callable[[str], CheckpointSpec]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """The family's tiny checkpoint with a safety checker, which flags nothing yet."""

    def make(name: str) -> CheckpointSpec:
        with_safety_checker(FAMILIES[name]()).save_pretrained(tmp_path / name)
        return family_spec(name, tmp_path, "img2img")

    return make


def flag_everything(checker: Any) -> None:
    with torch.no_grad():
        checker.concept_embeds_weights.fill_(-2)


@pytest.mark.daily("sd15-text")
@pytest.mark.parametrize(
    ("name", "kind"), [*(("sd15", kind) for kind in KINDS), ("lcm", "text"), ("sd15-inpaint", "mask")]
)
async def test_a_flagged_image_fails_its_job(name: str, kind: str, made: Made) -> None:
    engine, job = ImageEngine(DEVICE), image_job(made(name), steps=3, **KINDS[kind])
    assert isinstance(await last_event(engine, job), Finished)
    flag_everything((await engine.load(job.checkpoint)).components["safety_checker"])
    event = await last_event(engine, job)
    assert isinstance(event, Failed)
    assert event.code == "moderation_blocked"
    assert "safety checker" in event.message
    assert "nothing was charged" in event.message
    assert '"safety_checker": [null, null]' in event.detail


@pytest.mark.nightly
async def test_others_that_shared_its_passes_are_drawn(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker is set to know one of three images."""
    monkeypatch.setattr(RowLimits, "record", lambda *_: None)  # else what each took alone lets only two begin
    engine, spec = ImageEngine(DEVICE), made("sd15")
    jobs = [image_job(spec, id=f"{seed}", prompt=f"{seed}", seed=seed) for seed in range(3)]
    checker = (await engine.load(spec)).components["safety_checker"]
    seen: list[torch.Tensor] = []
    handle = checker.visual_projection.register_forward_hook(lambda *call: seen.append(call[-1]))
    for job in jobs:
        await drawn(engine, job)
    handle.remove()
    nearest = max(float(torch.cosine_similarity(seen[1], seen[other])) for other in (0, 2))
    with torch.no_grad():
        checker.concept_embeds.copy_(seen[1].expand_as(checker.concept_embeds))
        checker.concept_embeds_weights.fill_((1 + nearest) / 2)
    events = await drawn_together(engine, jobs)
    assert [type(event) for event in events] == [Finished, Failed, Finished]
    assert all(event.merged for event in events if isinstance(event, Finished))
    both = await last_event(engine, replace(jobs[0], id="both", prompt=jobs[1].prompt, n=2))  # seeds 0 and 1
    assert isinstance(both, Failed)


@pytest.mark.nightly
async def test_what_it_flags_is_no_evidence_at_warmup(made: Made) -> None:
    spec = made("sd15")
    engine = ImageEngine(DEVICE)
    checker = (await engine.load(spec)).components["safety_checker"]
    flag_everything(checker)
    found = await engine.prepare(spec)
    assert (found.guidance, found.negative_prompt, found.at_once, found.failed_checks) == (True, True, True, ())
    assert any("its own safety checker" in note for note in found.notes)
    assert isinstance(await last_event(engine, image_job(spec)), Failed)


async def test_warmup_finds_a_checker_that_does_not_run(made: Made) -> None:
    spec = made("sd15")
    engine = ImageEngine(DEVICE)
    (await engine.load(spec)).components["safety_checker"].visual_projection = torch.nn.Linear(3, 8)
    with pytest.raises(CheckpointError, match="loads and does not draw"):
        await engine.prepare(spec)


async def test_a_checkpoint_is_loaded_without_it(made: Made) -> None:
    """As docs/guides/moderation.md says."""
    spec = made("sd15")
    index = spec.path / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "safety_checker": [None, None]}))
    engine = ImageEngine(DEVICE)
    checkpoint = await engine.load(spec)
    assert checkpoint.components["safety_checker"] is None
    assert checkpoint.notes == ()
    await drawn(engine, image_job(spec))
