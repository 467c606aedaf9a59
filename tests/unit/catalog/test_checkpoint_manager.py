"""Adding, verifying, listing and removing checkpoints, and the settings that a swap fits, without a server."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipelines.checkpoints.folder.sums import manifest_of
from pipelines.checkpoints.work.plan import plan_image
from server.backends.gpus import Gpu
from server.catalog.images import Catalog, load_catalog, scaled_qualities
from server.cli.app import main
from server.cli.checkpoints import read_recipe
from server.errors import BadRequest, NotFound, StartError
from server.flows.catalog.edit import edited_text
from server.flows.operators import runtime_here
from server.flows.operators.checkpoints import CheckpointManager
from server.schemas.admin import ChangedSetting
from tests.support.weight_files import INDEX, denoiser_file, flux_folder, gguf_file
from tests.unit.catalog.test_runtime import flux_sizes

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def folder_of_another_family(folders: tuple[Path, Path]) -> None:
    flux_folder(folders[1] / "flux")


def catalog_of(folders: tuple[Path, Path]) -> Catalog:
    return load_catalog(*folders)


def test_an_added_checkpoint_is_in_the_catalog(manager: CheckpointManager, folders: tuple[Path, Path]) -> None:
    added = manager.add("flux", name="flux-dev", tiers=["1K", "2K"])
    models = catalog_of(folders).models
    assert added.models == ("flux-dev", "flux-dev-hd-count")
    assert added.file == folders[0] / "flux-dev.toml"
    model = models["flux-dev-hd-count"]
    assert (model.steps, model.tier, model.price_units, model.group) == (28, "2K", 2500, "alpha-image-per-call")
    assert model.checkpoint.sampling.guidance == 3.5
    assert model.checkpoint.path == folders[1] / "flux"
    assert "steps = 28  # the default of FluxPipeline, not checked for distillation" in added.text


def test_an_added_checkpoint_is_loaded_by_the_memory_that_there_is_unless_told_otherwise(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    added, plain = manager.add("flux", name="one"), manager.add("flux", name="two", runtime="plain")
    models = catalog_of(folders).models
    assert models["one"].checkpoint.runtime.auto
    assert not models["two"].checkpoint.runtime.auto
    assert plain.loading is None
    assert added.loading is not None


@pytest.mark.parametrize(
    ("total_gib", "host_gib", "expected"),
    [
        (79.2, 64, "on this RTX of 85 GB: plain, 31.5 GiB of the GPU for weights"),
        (23.5, 64, "offload = 'encoders', 14.8 GiB of the GPU for weights, 9.2 GiB of host memory"),
        (7.6, 64, "quantize = 'float8' and offload = 'group', 0.6 GiB of the GPU for weights, 23.6 GiB of host memory"),
        (7.6, 16, "it does not fit: its smallest form takes 0.6 GiB of the GPU for weights, "),
    ],
)
def test_add_says_what_auto_means_on_this_machine(
    total_gib: float, host_gib: int, expected: str, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLUX.1's sizes."""
    total = int(total_gib * 2**30)
    monkeypatch.setattr(runtime_here, "component_bytes", lambda _files, _item_bytes, quantize: flux_sizes(quantize))
    monkeypatch.setattr(runtime_here, "list_gpus", lambda _: [Gpu("GPU-1", "RTX", total, total)])
    monkeypatch.setattr(runtime_here, "compute_capability", lambda _: (8, 6))
    monkeypatch.setattr(runtime_here, "host_memory_bytes", lambda: host_gib * 2**30)
    loading = manager.add("flux", name="one").loading
    assert loading is not None
    assert expected in loading


def test_add_leaves_out_a_gpu_that_cannot_be_used(manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Gpu("", "", 0, 0, "GPU 1 can't be used: GPU is lost")
    gpus = [Gpu("GPU-1", "RTX", 80 * 2**30, 80 * 2**30), lost]
    monkeypatch.setattr(runtime_here, "list_gpus", lambda _: gpus)
    monkeypatch.setattr(runtime_here, "compute_capability", lambda _: (8, 6))
    loading = str(manager.add("flux", name="one").loading)
    assert loading.startswith("on this RTX of 86 GB: plain, ")
    assert loading.endswith(f"; {lost.problem}")
    assert "does not fit" not in loading
    del gpus[0]
    assert manager.add("flux", name="two").loading == lost.problem


@pytest.mark.parametrize("make", [denoiser_file, gguf_file])
def test_a_denoiser_alone_gets_its_base(manager: CheckpointManager, folders: tuple[Path, Path], make: object) -> None:
    file = folders[1] / f"tuned.{'gguf' if make is gguf_file else 'safetensors'}"
    make(file)  # type: ignore[operator]
    options = {"base": "flux"} if make is gguf_file else {}  # the other one has as many weights as the base's
    manager.add(file.name, **options)  # type: ignore[arg-type]
    spec = catalog_of(folders).models["tuned"].checkpoint
    assert (spec.path, spec.base, spec.name) == (file, folders[1] / "flux", "tuned")


@pytest.mark.parametrize(
    ("checkpoint", "options", "param", "message"),
    [
        ("nowhere", {}, "checkpoint", "There is no checkpoint at nowhere."),
        ("Fluxx", {}, "checkpoint", "There is no checkpoint at Fluxx; did you mean .*/weights/flux"),
        ("starter-chat", {}, "checkpoint", "a chat model or classifier of transformers"),
        ("flux", {"family": "gamma", "price": "1.00"}, None, "expected one of alpha, beta"),
        ("flux", {"family": "gamma"}, "price", "no 1K model whose price could be taken"),
        ("flux", {"name": "catalog"}, "name", "is there already"),
        ("flux", {"name": "beta-3-pro-image-count"}, "name", "is served already, by beta-3-pro.toml"),
        ("odd.gguf", {}, "checkpoint", "neither a diffusers folder"),
    ],
)
def test_what_cannot_be_added_writes_nothing(
    manager: CheckpointManager, folders: tuple[Path, Path], checkpoint: str, options: dict[str, str], param: str | None,
    message: str,
) -> None:  # fmt: skip
    gguf_file(folders[1] / "odd.gguf")
    before = {file: file.read_text() for file in folders[0].iterdir()}
    with pytest.raises((BadRequest, NotFound), match=message) as refused:
        manager.add(checkpoint, **options)  # type: ignore[arg-type]
    assert refused.value.param == param
    assert {file: file.read_text() for file in folders[0].iterdir()} == before


def test_verifying_names_what_has_changed(manager: CheckpointManager, folders: tuple[Path, Path]) -> None:
    with pytest.raises(NotFound, match="`darkroom checkpoints add` writes it"):
        manager.verify("flux")
    manager.add("flux", name="flux-dev")
    assert {each.state for each in manager.verify("flux")} == {"unchanged"}
    command = ["sha256sum", "--check", "--quiet", manifest_of(folders[1] / "flux").name]
    assert subprocess.run(command, cwd=folders[1], check=False).returncode == 0
    (folders[1] / "flux/.cache").mkdir()
    (folders[1] / "flux/.cache/download").touch()  # no part of the checkpoint
    assert {each.state for each in manager.verify("flux")} == {"unchanged"}
    weights = folders[1] / "flux/vae/diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    (folders[1] / "flux/vae/config.json").unlink()
    (folders[1] / "flux/new.txt").write_text("")
    changed = {each.file: each.state for each in manager.verify("flux") if each.state != "unchanged"}
    assert changed == {
        "flux/vae/diffusion_pytorch_model.safetensors": "changed",
        "flux/vae/config.json": "missing",
        "flux/new.txt": "new",
    }


def test_the_list_has_what_is_served_and_what_lies_there(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    found = {each.name: each for each in manager.list_all()}
    assert found.keys() == {"starter-alpha", "starter-beta", "flux"}
    assert found["starter-beta"].state == "in the catalog"
    assert len(found["starter-beta"].models) == 7 + 3, "alpha's calls with several references are drawn with it"
    assert found["flux"].state == "not in the catalog"
    files = [file for file in (folders[1] / "flux").rglob("*") if file.is_file()]
    assert found["flux"].bytes == sum(file.stat().st_size for file in files)


def test_the_hidden_files_that_macos_puts_beside_others_are_nothing(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    configs, weights = folders
    files = [file for file in (weights / "flux").rglob("*.safetensors") if file.is_file()]
    for file in [*files, configs / "starter-alpha.toml", weights / "flux" / "flux.safetensors"]:
        file.with_name(f"._{file.name}").write_bytes(b"\x00\x05\x16\x07Mac OS X\xff")
    assert manager.inspect("flux")[0].problems == ()
    assert manager.list_all()
    assert manager.add("flux", price="0.10").models
    (configs / ".#catalog.toml").symlink_to("nowhere")  # as Emacs locks a file
    assert manager.list_all()


def test_a_checkpoint_in_which_a_chat_model_lies_is_not_deleted(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    """As a text encoder of a pipeline that answers chats, too."""
    configs, weights = folders
    manager.add("flux", name="flux")
    (weights / "flux" / "chat").mkdir()
    (weights / "flux" / "chat" / "config.json").write_text("{}")
    chats = configs / "chat.toml"
    chats.write_text(chats.read_text() + '\n[[models]]\nname = "small"\ncheckpoint = "flux/chat"\n')
    with pytest.raises(BadRequest, match="another catalog file names it"):
        manager.remove("flux", delete_files=True)
    assert (weights / "flux" / "chat" / "config.json").exists()


def test_removing_deletes_the_file_and_what_nothing_else_needs(
    manager: CheckpointManager, folders: tuple[Path, Path]
) -> None:
    manager.add("flux", name="one")
    manager.add("flux", name="two")
    with pytest.raises(BadRequest, match="another catalog file names it"):
        manager.remove("one", delete_files=True)
    with pytest.raises(BadRequest, match="the rest of the catalog needs it"):
        manager.remove("alpha-image-2-count")
    with pytest.raises(NotFound, match="There is no image model `three`"):
        manager.remove("three")
    assert manager.remove("one") == [folders[0] / "one.toml"]
    two = folders[0] / "two.toml"
    two.write_text(f'{two.read_text()}\n[[controlnets]]\nname = "a"\ncheckpoint = "edges"\nmap = "canny"\n')
    flux_folder(folders[1] / "edges")
    manager.add("edges", name="three")
    with pytest.raises(BadRequest, match="another catalog file names it"):
        manager.remove("three", delete_files=True)
    manager.remove("two", delete_files=True)
    manager.remove("three", delete_files=True)
    assert {file.name for file in folders[1].iterdir()} == {"starter-alpha", "starter-beta", "starter-chat"}
    assert "two" not in catalog_of(folders).models
    assert "alpha-image-2-count" in catalog_of(folders).models


def test_a_swap_fits_what_differs_between_the_two(manager: CheckpointManager, folders: tuple[Path, Path]) -> None:
    alpha = catalog_of(folders).models["alpha-image-2-count"]
    changes = {change.key: (change.old, change.new) for change in manager.fit(alpha, "flux")}
    assert changes == {"steps": (20, 28), "sampling.guidance": (2.0, 3.5)}
    shown = [ChangedSetting.model_validate(each, from_attributes=True) for each in manager.fit(alpha, "flux")]
    assert '"old":20,"new":28' in shown[0].model_dump_json(), "whole numbers stay whole"
    assert manager.fit(alpha, "starter-alpha") == []
    to_beta = {change.key: change.new for change in manager.fit(alpha, "starter-beta")}
    assert to_beta == {"conditioning": "native", "steps": 4, "sampling.guidance": 1.0}


@pytest.mark.parametrize(
    ("class_name", "means"),
    [
        ("Flux2Pipeline", None),
        ("OvisImagePipeline", None),  # it packs its latents
        ("Lumina2Pipeline", [0.0] * 16),  # late starts know no means
    ],
)
def test_a_class_without_a_second_pass_enlarges_by_scaling(
    manager: CheckpointManager, folders: tuple[Path, Path], class_name: str, means: list[float] | None
) -> None:
    flux_folder(folders[1] / "flux2", index={**INDEX, "_class_name": class_name}, vae={"latents_mean": means})
    alpha = catalog_of(folders).models["alpha-image-2-count"]
    assert ("enlarge", "redraw", "resize") in [(each.key, each.old, each.new) for each in manager.fit(alpha, "flux2")]
    manager.add("flux2", tiers=["1K", "4K"])
    spec = catalog_of(folders).models["flux2-4k-count"].checkpoint
    assert (spec.enlarge, spec.refined) == ("resize", False)
    assert plan_image(spec, 3840, 2160, 32).finish == "resize"


def test_a_swap_keeps_what_its_file_says_besides(manager: CheckpointManager, folders: tuple[Path, Path]) -> None:
    gguf_file(folders[1] / "tuned.gguf", 1024)
    before = catalog_of(folders)
    assert manager.fit(before.models["beta-3-pro-image-count"], "tuned.gguf") == []  # no base has as many weights
    changes = manager.fit(before.models["alpha-image-2-count"], "flux")
    text = edited_text(before.models["alpha-image-2-count"].source.read_text(), "flux", changes)
    assert "# denoising steps for each quality" in text
    before.models["alpha-image-2-count"].source.write_text(text)
    model = catalog_of(folders).models["alpha-image-2-count"]
    settings = {change.key: change.new for change in changes}
    assert (model.checkpoint.path, model.steps) == (folders[1] / "flux", settings["steps"])
    assert model.quality == scaled_qualities(before.models["alpha-image-2-count"].quality, 20, model.steps)


def run(monkeypatch: pytest.MonkeyPatch, folders: tuple[Path, Path], *arguments: str) -> int:
    monkeypatch.setenv("DARKROOM_MODEL_CONFIGS", str(folders[0]))
    monkeypatch.setenv("DARKROOM_WEIGHTS", str(folders[1]))
    monkeypatch.setenv("DARKROOM_HOME", str(folders[1] / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.argv", ["darkroom", "checkpoints", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_commands_print_what_they_found(
    monkeypatch: pytest.MonkeyPatch, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, folders, "inspect", "flux") == 0
    shown = capsys.readouterr().out
    assert "FluxPipeline" in shown
    assert "steps           28  (the default of FluxPipeline, not checked for distillation)" in shown
    assert run(monkeypatch, folders, "add", "flux", "--name", "mine", "--tiers", "1K,2K") == 0
    assert "`darkroom reload` serves mine, mine-hd-count" in capsys.readouterr().out
    assert run(monkeypatch, folders, "verify", "flux") == 0
    assert run(monkeypatch, folders, "list") == 0
    assert "mine, mine-hd-count" in capsys.readouterr().out
    assert run(monkeypatch, folders, "remove", "mine") == 0
    alpha = folders[0] / "alpha-image-2.toml"
    alpha.write_text(alpha.read_text().replace("[runtime]\n", '[runtime]\nlora_folder = "loras"\n'))
    (folders[1] / "loras").mkdir()
    pair = {"a.lora_A.weight": np.zeros((16, 4)), "a.lora_B.weight": np.zeros((4, 16))}
    save_file(pair, folders[1] / "loras" / "ink.safetensors")
    capsys.readouterr()
    assert run(monkeypatch, folders, "adapters") == 0
    assert re.search(r"alpha-image-2-count.*ink.*16.*not tried", capsys.readouterr().out)
    for arguments, message in (
        (("inspect", "nowhere"), "There is no checkpoint at nowhere"),
        (("add", "flux", "--tiers", "8K"), "There is no tier '8K'"),
        (("proof",), "Name the models or checkpoints to compare"),
        (("proof", "a"), "No server has run"),
    ):
        assert run(monkeypatch, folders, *arguments) == 1
        assert message in capsys.readouterr().err


def test_a_sheet_tells_how_it_was_drawn(tmp_path: Path) -> None:
    from PIL import Image

    from pipelines.images.contact_sheet import make_sheet

    recipe = {"candidates": [{"name": "a"}], "prompts": ["ein Schloß"], "seeds": [1]}
    described = {"columns": ["a\n2 steps"], "rows": ["seed 1: x" * 100], "cell_px": 64, "recipe": recipe}
    (tmp_path / "sheet.json").write_text(json.dumps(described))
    Image.new("RGB", (128, 96), "red").save(tmp_path / "0-0.png")
    make_sheet(tmp_path)
    assert read_recipe(tmp_path / "sheet.png") == recipe
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.convert("RGB").getpixel((40, sheet.height - 40)) == (255, 0, 0)
    with pytest.raises(StartError, match="is no sheet"):
        read_recipe(tmp_path / "0-0.png")
    with pytest.raises(StartError, match="can't be read"):
        read_recipe(tmp_path / "none.png")
