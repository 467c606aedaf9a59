"""Single files beside folders that could go with them: all components with a folder of configs, or a denoiser alone."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from server.catalog.images import Catalog, load_catalog
from server.errors import BadRequest
from server.flows.catalog.edit import edited_text
from server.flows.operators.checkpoints import CheckpointManager
from server.schemas.checkpoints import report_of
from tests.support.weight_files import denoiser_file, flux_folder, inspect_checkpoint
from tests.unit.catalog.test_checkpoint_manager import run


@pytest.fixture(autouse=True)
def folder_of_another_family(folders: tuple[Path, Path]) -> None:
    flux_folder(folders[1] / "flux")


def catalog_of(folders: tuple[Path, Path]) -> Catalog:
    return load_catalog(*folders)


def whole_file(file: Path, weights: int = 1000) -> Path:
    """A denoiser of so many weights, its average over the training, the text encoders and the codec."""
    tensors = {
        "model.diffusion_model.a.weight": np.zeros(weights, np.float16),
        "model_ema.a.weight": np.zeros(weights, np.float16),
        "cond_stage_model.transformer.a.weight": np.zeros(30, np.float16),
        "text_encoders.t5xxl.transformer.a.weight": np.zeros(70, np.float16),
        "first_stage_model.a.weight": np.zeros(10, np.float16),
    }
    save_file(tensors, file)
    return file


def configs_alone(folder: Path) -> Path:
    flux_folder(folder)
    for file in folder.rglob("*.safetensors"):
        file.unlink()
    return folder


def test_a_whole_file_asks_for_the_folder_of_its_configs(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    whole_file(folders[1] / "dream.safetensors", 3000)
    configs_alone(folders[1] / "layout")
    inspection, _ = manager.inspect("dream.safetensors")
    assert inspection.problems == (f"{folders[1]}/dream.safetensors: a whole checkpoint, which needs `config`",)
    with pytest.raises(BadRequest, match=r"its configs in 'config'\. Folders here: flux, layout, starter") as refused:
        manager.add("dream.safetensors")
    assert refused.value.param == "config"
    with pytest.raises(BadRequest, match="'base' is for a denoiser alone"):
        manager.inspect("dream.safetensors", "flux", "layout")
    added = manager.add("dream.safetensors", config="layout")
    assert 'config       = "layout"' in added.text
    spec = catalog_of(folders).models["dream"].checkpoint
    assert (spec.path, spec.base, spec.config) == (folders[1] / "dream.safetensors", None, folders[1] / "layout")
    report = report_of(*manager.inspect("dream.safetensors", config="layout"))
    assert (report.base, report.config, report.problems) == (None, str(folders[1] / "layout"), [])
    assert [(part.name, part.weights) for part in report.parts] == [("all components", 6110)]


def test_a_whole_file_gets_the_only_folder_of_as_many_weights(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    whole_file(folders[1] / "dream.safetensors")
    manager.add("dream.safetensors")
    assert catalog_of(folders).models["dream"].checkpoint.config == folders[1] / "flux"
    on_base = inspect_checkpoint(folders[1] / "dream.safetensors", folders[1] / "flux")
    assert (on_base.problems, on_base.weights) == ((), 1110), "with a base, its denoiser alone is read"


def test_the_commands_take_a_config(
    monkeypatch: pytest.MonkeyPatch, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    whole_file(folders[1] / "dream.safetensors", 3000)
    configs_alone(folders[1] / "layout")
    for command in ("inspect", "add"):
        assert run(monkeypatch, folders, command, "dream.safetensors", "--config", "layout") == 0
        assert "layout" in capsys.readouterr().out
    assert "dream" in catalog_of(folders).models


def test_one_of_several_bases_must_be_named(manager: CheckpointManager, folders: tuple[Path, Path]) -> None:
    flux_folder(folders[1] / "kontext")
    denoiser_file(folders[1] / "tuned.safetensors")
    whole_file(folders[1] / "dream.safetensors")
    alpha = catalog_of(folders).models["alpha-image-2-count"]
    for name, key in (("tuned", "base"), ("dream", "config")):
        file = f"{name}.safetensors"
        for request in (manager.inspect, manager.add):
            with pytest.raises(BadRequest, match=f"{file}: flux, kontext. Name the one .* in '{key}'") as refused:
                request(file)  # type: ignore[operator]
            assert refused.value.param == key
        with pytest.raises(BadRequest, match=f"Edit `checkpoint` and `{key}` in alpha-image-2.toml, and reload"):
            manager.fit(alpha, file)
        manager.add(file, **{key: "kontext"})  # type: ignore[arg-type]
        assert getattr(catalog_of(folders).models[name].checkpoint, key) == folders[1] / "kontext"


def test_a_swap_keeps_the_folder_that_the_catalog_file_names(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    flux_folder(folders[1] / "kontext")
    for name in ("one", "two"):
        denoiser_file(folders[1] / f"{name}.safetensors")
        whole_file(folders[1] / f"whole-{name}.safetensors", 3000)
    configs_alone(folders[1] / "layout")
    manager.add("one.safetensors", base="flux")
    manager.add("whole-one.safetensors", config="layout")
    for name, file in (("one", "two.safetensors"), ("whole-one", "whole-two.safetensors")):
        before = catalog_of(folders)
        assert manager.fit(before.models[name], file) == []
        old, source = before.models[name].checkpoint, before.models[name].source
        source.write_text(edited_text(source.read_text(), file, []))
        spec = catalog_of(folders).models[name].checkpoint
        assert (spec.path, spec.base, spec.config) == (folders[1] / file, old.base, old.config)
    changes = manager.fit(catalog_of(folders).models["whole-one"], "flux")
    assert [(each.key, each.old, each.new) for each in changes] == [("config", "layout", None)]


def test_a_config_may_be_a_downloads_cache(manager: CheckpointManager, folders: tuple[Path, Path]) -> None:
    whole_file(folders[1] / "dream.safetensors", 3000)
    snapshot = folders[1] / "models--x--y" / "snapshots" / "111"
    configs_alone(snapshot)
    manager.add("dream.safetensors", config="models--x--y")
    assert catalog_of(folders).models["dream"].checkpoint.config == snapshot
