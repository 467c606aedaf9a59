"""Files and snapshots inside the cache of a download: how they are named, and what deleting one deletes."""

import shutil
from pathlib import Path

import pytest

from server.catalog.images import load_catalog
from server.errors import BadRequest
from server.flows.operators.checkpoints import CheckpointManager
from tests.support.weight_files import denoiser_file, flux_folder

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    shutil.copytree(REPOSITORY / "model_configs", tmp_path / "configs")
    flux_folder(tmp_path / "weights" / "flux")
    for name in ("starter-alpha", "starter-beta", "starter-chat"):
        (tmp_path / "weights" / name).symlink_to(REPOSITORY / "weights" / name)
    return tmp_path / "weights"


@pytest.fixture
def manager(weights: Path) -> CheckpointManager:
    return CheckpointManager(weights.parent / "configs", weights)


def cached(cache: Path, snapshot: str) -> Path:
    """A snapshot's folder, whose files have become links to blobs as huggingface_hub has them."""
    folder = cache / "snapshots" / snapshot
    (cache / "blobs").mkdir(parents=True, exist_ok=True)
    for file in [each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()]:
        blob = cache / "blobs" / f"{snapshot}-{file.name}"
        file.rename(blob)
        file.symlink_to(blob)
    (cache / "refs").mkdir(exist_ok=True)
    (cache / "refs" / "main").write_text(snapshot)
    return folder


@pytest.fixture
def files(weights: Path) -> Path:
    """The snapshot of a repository of denoisers alone."""
    cache = weights / "models--c--g"
    folder = cache / "snapshots" / "111"
    folder.mkdir(parents=True)
    for name in ("q4", "q8"):
        denoiser_file(folder / f"{name}.safetensors")
    return cached(cache, "111")


def entry(weights: Path, name: str) -> Path:
    return weights.parent / "configs" / f"{name}.toml"


def spec_of(weights: Path, model: str) -> tuple[Path, Path | None]:
    spec = load_catalog(weights.parent / "configs", weights).models[model].checkpoint
    return spec.path, spec.base


def test_a_file_in_a_cache_is_named_by_its_own_path(manager: CheckpointManager, weights: Path, files: Path) -> None:
    added = manager.add("models--c--g/snapshots/111/q4.safetensors", base="flux")
    assert added.models == ("q4",)
    assert spec_of(weights, "q4") == (files / "q4.safetensors", weights / "flux")
    found = {each.name: each.state for each in manager.list_all()}
    assert found["models--c--g/snapshots/111/q4.safetensors"] == "in the catalog"


def test_a_snapshot_is_named_by_its_cache_only_if_the_cache_stands_for_it(
    manager: CheckpointManager, weights: Path
) -> None:
    cache = weights / "models--A--B"
    for name in ("old", "new"):
        flux_folder(cache / "snapshots" / name)
    old, new = cached(cache, "old"), cached(cache, "new")  # the refs name the second
    pinned = manager.add("models--A--B/snapshots/old", name="pinned")
    assert spec_of(weights, "pinned")[0] == old
    assert pinned.manifest == cache / "snapshots" / "old.sha256"
    shown = manager.add("models--A--B/snapshots/new")
    assert (shown.models, spec_of(weights, "a-b")[0]) == (("a-b",), new)
    assert 'checkpoint   = "models--A--B"\n' in shown.text
    assert shown.manifest == weights / "models--A--B.sha256"
    denoiser_file(weights / "tuned.safetensors")
    manager.add("tuned.safetensors", base="models--A--B/snapshots/old")
    assert spec_of(weights, "tuned")[1] == old
    manager.remove("tuned", delete_files=True)
    with pytest.raises(BadRequest, match="another catalog file names it"):
        manager.remove("a-b", delete_files=True)  # the older snapshot is in it
    manager.remove("pinned", delete_files=True)
    assert not old.exists()
    assert {file.name.partition("-")[0] for file in (cache / "blobs").iterdir()} == {"new"}
    assert not [file for file in new.rglob("*") if not file.exists()]
    manager.remove("a-b", delete_files=True)
    assert not cache.exists()
    assert not (weights / "models--A--B.sha256").exists()


def test_removing_a_file_of_a_cache_leaves_the_others(manager: CheckpointManager, weights: Path, files: Path) -> None:
    text = manager.add("models--c--g/snapshots/111/q4.safetensors", base="flux", name="one").text
    blobs = files.parents[1] / "blobs"
    newer = files.with_name("222")
    newer.mkdir()
    (newer / "q4.safetensors").symlink_to("../../blobs/111-q4.safetensors")  # an unchanged file of a later snapshot
    manager.remove("one", delete_files=True)
    assert {file.name for file in files.iterdir()} == {"q8.safetensors"}
    assert {file.name for file in blobs.iterdir()} == {"111-q4.safetensors", "111-q8.safetensors"}
    entry(weights, "two").write_text(text.replace("/111/", "/222/").replace('"one"', '"two"'))
    manager.remove("two", delete_files=True)
    assert {file.name for file in blobs.iterdir()} == {"111-q8.safetensors"}
    assert (files / "q8.safetensors").is_file()


def test_what_another_catalog_file_names_is_not_deleted(manager: CheckpointManager, weights: Path, files: Path) -> None:
    """Nor what its own file is a part of, and not what a link leads to."""
    for name in ("q4", "q8"):
        manager.add(f"models--c--g/snapshots/111/{name}.safetensors", base="flux")
    (weights / "linked").symlink_to("flux")
    manager.add("linked")
    text = entry(weights, "q4").read_text()
    for checkpoint in ("models--c--g", "models--c--g/snapshots/111", "flux", "flux/vae"):
        entry(weights, "q4").write_text(text.replace("models--c--g/snapshots/111/q4.safetensors", checkpoint))
        with pytest.raises(BadRequest, match="another catalog file names it"):
            manager.remove("q4", delete_files=True)
    for checkpoint in (".", "models--c--g/../.", str(weights.parent)):
        entry(weights, "q4").write_text(text.replace("models--c--g/snapshots/111/q4.safetensors", checkpoint))
        with pytest.raises(BadRequest, match="is not under the weights folder"):
            manager.remove("q4", delete_files=True)
    entry(weights, "q4").write_text(text)
    manager.remove("linked", delete_files=True)
    assert not (weights / "linked").is_symlink()
    assert (weights / "flux" / "model_index.json").is_file(), "only the link was named"
