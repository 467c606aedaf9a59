"""What becomes of each key of a catalog file at a swap: what belonged to the old checkpoint goes, the rest is told."""

from pathlib import Path

import pytest

from pipelines.protocol.images import CheckpointSpec
from server.catalog.images import load_catalog
from server.errors import BadRequest
from server.flows.catalog.update import CatalogUpdater
from server.flows.operators.checkpoints import CheckpointManager
from server.state.served import ServedCatalog
from tests.support.weight_files import denoiser_file, flux_folder, sd_folder
from tests.unit.catalog.conftest import Workers

MADE_FOR = "it was made for a FluxTransformer2DModel, and the new checkpoint has a UNet2DConditionModel"
TEXT = """\
# Mine.
checkpoint     = "one"  # from a friend
family         = "alpha"
vae            = "kind-vae"  # it decodes better
denoiser       = "tuned"
text_encoder_2 = "two"
conditioning   = "img2img"
steps          = 50  # its name says lightning
max_references = 1

[sampling]
guidance        = 3.5  # the default of FluxPipeline, not checked for distillation
negative_prompt = "text"

[runtime]
dtype          = "bfloat16"
loras          = [{ path = "ink.safetensors", weight = 0.5 }]
lora_folder    = "styles"

[[controlnets]]
name       = "edges"
checkpoint = "canny"
map        = "canny"

[[models]]
name  = "mine"
tier  = "1K"
price = "0.10"
"""


@pytest.fixture
def file(folders: tuple[Path, Path], served: ServedCatalog) -> Path:
    for name in ("styles", "kind-vae", "tuned", "canny"):
        (folders[1] / name).mkdir()
    sd_folder(folders[1] / "sd")
    file = folders[0] / "mine.toml"
    file.write_text(TEXT)
    served.current = load_catalog(*folders)
    return file


def text_of(file: Path) -> str:
    return file.read_text()


async def test_parts_of_the_old_checkpoint_go_and_each_key_that_stays_is_told(
    updater: CatalogUpdater, served: ServedCatalog, file: Path
) -> None:
    diff = await updater.swap("mine", "two")
    changed = {each.key: (each.old, each.new) for each in diff.settings}
    assert changed == {
        "vae": ("kind-vae", None), "denoiser": ("tuned", None), "text_encoder_2": ("two", None),
    }  # fmt: skip
    assert all("took the place of a part of the old checkpoint" in each.why for each in diff.settings)
    kept = {each.key: each.why for each in diff.kept}
    assert kept.keys() == {
        "conditioning", "steps", "max_references", "sampling.guidance", "sampling.negative_prompt", "runtime.loras",
        "runtime.lora_folder", "controlnets",
    }  # fmt: skip
    assert kept["steps"] == "both call for 28; so does its comment: # its name says lightning"
    assert kept["runtime.loras"] == kept["controlnets"] == "the new checkpoint loads with it"
    assert (served.current.models["mine"].checkpoint.parts, served.current.models["mine"].steps) == ((), 50)
    text = text_of(file)
    assert 'checkpoint     = "two"\n' in text, "its comment was about the old one"
    assert not {"vae", "denoiser", "text_encoder_2"} & {line.split(" ")[0] for line in text.splitlines()}
    await updater.undo()
    assert text_of(file) == TEXT


async def test_what_was_made_for_other_weights_goes(updater: CatalogUpdater, file: Path) -> None:
    diff = await updater.swap("mine", "sd")
    dropped = {each.key: each.why for each in diff.settings if each.new is None}
    assert dropped.keys() == {
        "vae", "denoiser", "text_encoder_2", "runtime.loras", "runtime.lora_folder", "controlnets",
    }  # fmt: skip
    assert dropped["controlnets"] == MADE_FOR
    text = text_of(file)
    assert "lightning" not in text, "the comment of a value that changed"
    assert "steps          = 50  # the default of StableDiffusionPipeline, not checked for distillation\n" in text
    assert "controlnets" not in text
    assert 'dtype          = "bfloat16"' in text
    await updater.undo()
    assert text_of(file) == TEXT


async def test_what_the_new_checkpoint_does_not_load_with_goes(
    updater: CatalogUpdater, workers: Workers, file: Path
) -> None:
    def refuse(spec: CheckpointSpec) -> str | None:
        if spec.path.name != "two":
            return None
        if spec.runtime.loras:
            return f"runtime.loras: {spec.runtime.loras[0].path}: no layer of it is in there; it is for others"
        return "controlnets, ip_adapters: none works with it" if spec.controls else None

    workers.refuse = refuse
    diff = await updater.swap("mine", "two")
    dropped = {each.key: each.why for each in diff.settings if each.new is None}
    assert "does not load with it: " in dropped["runtime.loras"]
    assert "no layer of it is in there" in dropped["runtime.loras"]
    assert "controlnets" in dropped
    assert "runtime.lora_folder" in {each.key for each in diff.kept}
    assert "loras " not in text_of(file)
    await updater.undo()
    workers.refuse = lambda spec: "the device is too small" if spec.path.name == "two" else None
    with pytest.raises(BadRequest, match="the device is too small"):
        await updater.swap("mine", "two")
    assert text_of(file) == TEXT


async def test_kept_settings_all_stay_and_a_refusal_is_not_worked_around(
    updater: CatalogUpdater, workers: Workers, file: Path
) -> None:
    diff = await updater.swap("mine", "two", keep_settings=True)
    assert diff.settings == ()
    assert {"vae", "denoiser", "steps", "runtime.loras"} <= {each.key for each in diff.kept}
    assert text_of(file) == TEXT.replace('"one"', '"two"')
    await updater.undo()
    workers.refuse = lambda spec: "runtime.loras: no" if spec.path.name == "two" else None
    with pytest.raises(BadRequest, match=r"runtime\.loras: no"):
        await updater.swap("mine", "two", keep_settings=True)


async def test_a_swap_to_the_same_checkpoint_changes_no_key(updater: CatalogUpdater, file: Path) -> None:
    assert (await updater.swap("mine", "one")).settings == ()
    assert text_of(file) == TEXT


async def test_what_was_written_of_the_old_checkpoint_is_written_of_the_new_one(
    manager: CheckpointManager, updater: CatalogUpdater, served: ServedCatalog, folders: tuple[Path, Path]
) -> None:
    added = manager.add("one", name="new")
    flux_folder(folders[1] / "lightning-4steps")
    served.current = load_catalog(*folders)
    await updater.swap("new", "lightning-4steps")
    text = text_of(added.file)
    assert "steps = 4  # its name says" in text
    await updater.swap("new", "one")
    assert text_of(added.file) == added.text
    for _ in range(2):
        await updater.undo()
    assert text_of(added.file) == added.text


async def test_a_file_that_needs_a_folder_is_refused_with_what_to_write(
    updater: CatalogUpdater, folders: tuple[Path, Path]
) -> None:
    denoiser_file(folders[1] / "alone.safetensors", 500)
    before = (folders[0] / "alpha-image-2.toml").read_text()
    with pytest.raises(
        BadRequest, match=r"Nothing has changed\. alone\.safetensors is one file.*\(there are: one"
    ) as refused:
        await updater.swap("alpha-image-2-count", "alone.safetensors")
    assert '`checkpoint = "alone.safetensors"` and `base`' in refused.value.message
    assert "into alpha-image-2.toml, and reload" in refused.value.message
    assert (folders[0] / "alpha-image-2.toml").read_text() == before
