"""The shipped catalog, and the errors of broken ones."""

import re
import shutil
from pathlib import Path

import pytest

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from server.catalog.images import CatalogError, load_catalog
from server.catalog.specs import alias_of
from server.catalog.toml import KeyPath, line_of
from server.flows.catalog.edit import edited_text
from server.flows.catalog.files import parse, read_files

REPOSITORY = Path(__file__).resolve().parents[3]
PRICES = {
    "alpha-image-2-count": ("1K", 1000), "alpha-image-2-hd-count": ("2K", 2500), "alpha-image-2-4k-count": ("4K", 5000),
    "beta-2.5-flash-image-count": ("1K", 1000), "beta-3.1-flash-image-count": ("1K", 3000),
    "beta-3.1-flash-image-hd-count": ("2K", 4000), "beta-3.1-flash-image-4k-count": ("4K", 5500),
    "beta-3-pro-image-count": ("1K", 4000), "beta-3-pro-image-hd-count": ("2K", 4000),
    "beta-3-pro-image-4k-count": ("4K", 5000),
}  # fmt: skip


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPOSITORY / "model_configs", tmp_path / "model_configs"))


def edit(configs: Path, file: str, old: str, new: str) -> None:
    text = (configs / file).read_text()
    assert old in text
    (configs / file).write_text(text.replace(old, new, 1))


def test_all_ten_models_are_there_with_their_tiers_and_prices() -> None:
    catalog = load_catalog(REPOSITORY / "model_configs", Path("weights"))
    assert {model.name: (model.tier, model.price_units) for model in catalog.models.values()} == PRICES
    assert catalog.models["alpha-image-2-4k-count"].ratios == ("16:9", "9:16", "2:1", "1:2", "21:9", "9:21")
    assert "8:1" in catalog.models["beta-3.1-flash-image-4k-count"].ratios
    assert "8:1" not in catalog.models["beta-3-pro-image-4k-count"].ratios


def test_quality_belongs_to_alpha_and_orders_the_steps() -> None:
    catalog = load_catalog(REPOSITORY / "model_configs", Path("weights"))
    alpha, beta = catalog.models["alpha-image-2-count"], catalog.models["beta-3-pro-image-count"]
    assert alpha.steps_for("low") < alpha.steps_for("medium") < alpha.steps_for("high")
    assert alpha.steps_for(None) == alpha.steps_for("auto") == alpha.steps_for("high")
    assert alpha.steps_for("high") < alpha.steps_for("xhigh") < alpha.steps_for("max")
    assert (alpha.resolved_quality("standard"), alpha.resolved_quality("hd")) == ("medium", "high")
    assert beta.quality is None


def test_a_table_without_the_best_qualities_gives_the_best_it_has(configs: Path) -> None:
    for line in ("xhigh   = { steps = 26 }\n", "max     = { steps = 32 }\n"):
        edit(configs, "alpha-image-2.toml", line, "")
    alpha = load_catalog(configs, Path("weights")).models["alpha-image-2-count"]
    assert [alpha.resolved_quality(name) for name in ("xhigh", "max")] == ["high", "high"]


def test_an_older_name_is_of_a_quality_that_is_there(configs: Path) -> None:
    edit(configs, "alpha-image-2.toml", "xhigh   = { steps = 26 }\n", "")
    edit(configs, "alpha-image-2.toml", 'hd       = "high"', 'hd = "xhigh"')
    with pytest.raises(CatalogError, match=r"quality\.hd: got 'xhigh', which this table does not have"):
        load_catalog(configs, Path("weights"))


def test_an_alias_may_answer_with_bytes() -> None:
    catalog = load_catalog(REPOSITORY / "model_configs", Path("weights"))
    for name in ("gpt-image-1", "gpt-image-2-2026-04-21", "gpt-image-1-mini", "chatgpt-image-latest"):
        assert catalog.answers_bytes(name)
    assert not any(map(catalog.answers_bytes, ("dall-e-3", None, *catalog.models)))


def test_another_checkpoint_is_one_edit(configs: Path) -> None:
    edit(configs, "alpha-image-2.toml", '"starter-alpha"', '"sdxl"')
    catalog = load_catalog(configs, Path("/weights"))
    assert catalog.models["alpha-image-2-count"].checkpoint.path == Path("/weights/sdxl")


def test_aliases_and_the_default_are_found() -> None:
    catalog = load_catalog(REPOSITORY / "model_configs", Path("weights"))
    assert catalog.find(None) is catalog.find("gpt-image-1") is catalog.models["alpha-image-2-count"]
    assert catalog.find("no such model") is None


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("gpt-image-2-2026-04-21", "alpha-image-2-count"),
        ("gpt-image-3", "alpha-image-2-count"),
        ("gpt-image-2-mini-2026-09-01", "beta-2.5-flash-image-count"),
        ("chatgpt-image-2026-10-02", "alpha-image-2-count"),
        ("dall-e-3-2024-01-01", "alpha-image-2-count"),
        ("gemini-2.5-flash-image-preview", "beta-2.5-flash-image-count"),
        ("gemini-3.5-flash-image-preview", "beta-3.1-flash-image-count"),
        ("gemini-4-pro-image", "beta-3-pro-image-count"),
        ("GPT-image-2", None),
        ("my-gpt-image-2", None),
    ],
)
def test_names_of_a_series_are_found_by_its_pattern(name: str, model: str | None) -> None:
    catalog = load_catalog(REPOSITORY / "model_configs", Path("weights"))
    assert catalog.find(name) is (catalog.models[model] if model else None)


def test_the_name_itself_and_then_the_longest_pattern_win() -> None:
    assert alias_of("a-1", ["a-*", "a-1", "*"]) == "a-1"
    assert alias_of("a-2", ["*", "a-*"]) == "a-*"
    assert alias_of("b", ["a*"]) is None


BROKEN = [
    ("alpha-image-2.toml", '"2K"', '"8K"', "models[1].tier", "expected '1K', '2K' or '4K'"),
    ("alpha-image-2.toml", '"2K"', '"1K"', "models[1].tier", "expected '2K' for 'alpha-image-2-hd-count'"),
    ("alpha-image-2.toml", '"0.25"', '"free"', "models[1].price", "got 'free'"),
    ("alpha-image-2.toml", '"0.25"', '"0.00001"', "models[1].price", "got '0.00001'"),
    ("alpha-image-2.toml", '"img2img"', '"ip-adapter"', "conditioning", "expected 'img2img', 'native' or 'upscale'"),
    ("alpha-image-2.toml", 'family       = "alpha"', 'family = "gamma"', "family", "expected one of alpha, beta"),
    ("alpha-image-2.toml", "guidance ", "guidence ", "sampling.guidence", "'guidance'?"),
    ("alpha-image-2.toml", '"starter-alpha"', '"x.safetensors"', "config", "needs the folder of its configs"),
    ("alpha-image-2.toml", '"21:9"', '"5:1"', "models[2].ratios", "not in presets.toml"),
    ("alpha-image-2.toml", "{ steps = 14 }", "{ steps = 0 }", "quality.low.steps", "expected at least 1"),
    ("alpha-image-2.toml", "[quality]", "[quality", "not valid TOML", "at line"),
    ("alpha-image-2.toml", 'hd       = "high"', 'hd = "best"', "quality.hd", "expected 'low'"),
    ("catalog.toml", '"b64_json",', '"bytes",', "aliases.gpt-image-1.response_format", "expected 'b64_json'"),
    ("catalog.toml", '{ model = "alpha-image-2-count"', '{ model = "x"', "aliases.gpt-image-1", "not a model"),
    ("beta-3-pro.toml", "steps ", "# steps ", "steps", "missing"),
    ("beta-3-pro.toml", "beta-3-pro-image-count", "beta-2.5-flash-image-count", "models[0].name", "beta-2.5-flash"),
    ("catalog.toml", '"gpt-4o-mini"          = "beta', '"gpt-4o-mini" = "x', "aliases.gpt-4o-mini", "not a model"),
    ("catalog.toml", 'default = "alpha-image-2-count"', 'default = "x"', "default", "not a model"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "old", "new", "key", "advice"), BROKEN, ids=[f"{row[3]}: {row[4]}" for row in BROKEN])
def test_a_broken_file_is_refused_with_file_key_and_advice(
    configs: Path, file: str, old: str, new: str, key: str, advice: str
) -> None:
    edit(configs, file, old, new)
    with pytest.raises(CatalogError) as refused:
        load_catalog(configs, Path("weights"))
    assert file in str(refused.value)
    assert key in str(refused.value)
    assert advice in str(refused.value)


def test_all_errors_are_reported_at_once(configs: Path) -> None:
    edit(configs, "alpha-image-2.toml", '"img2img"', '"magic"')
    edit(configs, "beta-3-pro.toml", '"0.50"', '"x"')
    with pytest.raises(CatalogError) as refused:
        load_catalog(configs, Path("weights"))
    assert len(str(refused.value).splitlines()) == 2


SHIPPED = [row for row in BROKEN if row[4] not in {"missing", "needs the folder of its configs"}]


@pytest.mark.parametrize(("file", "old", "new", "key"), [row[:4] for row in SHIPPED])
def test_an_error_names_the_line_of_its_key(configs: Path, file: str, old: str, new: str, key: str) -> None:
    edit(configs, file, old, new)
    lines = (configs / file).read_text().splitlines()
    with pytest.raises(CatalogError) as refused:
        load_catalog(configs, Path("weights"))
    error = next(line for line in str(refused.value).splitlines() if key in line)
    line_number = re.search(r"line (\d+)", error)
    assert line_number is not None, error
    assert new in lines[int(line_number[1]) - 1]


TEXT = """
[[models]]
name = "a"
[models.options]
tier = 1
[[models]]
name = "b"
"tier" = 2     # name = "c"
low = { tier = 3 }
[ other . "x.y" ]
tier.high = 4
[[models]]
"""
KEY_PATHS: list[tuple[KeyPath, int | None]] = [
    (("models", 0, "name"), 3),
    (("models", 1, "name"), 7),
    (("models", 0, "options", "tier"), 5),
    (("models", 1, "tier"), 8),
    (("models", 1, "low", "tier"), 9),
    (("other", "x.y", "tier", "high"), 11),
    (("models", 2, "name"), 12),  # missing from that table
    (("models", 0, "price", 3), 2),
    (("default",), None),
]


@pytest.mark.parametrize(("key_path", "line"), KEY_PATHS)
def test_the_line_of_a_key_path_is_found(key_path: KeyPath, line: int | None) -> None:
    assert line_of(TEXT, key_path) == line


@pytest.mark.parametrize("name", ["nowhere", "x" * 300, "x/" * 5000, "a\0b"])
def test_a_checkpoint_that_cannot_be_there_is_refused(name: str) -> None:
    catalog = load_catalog(REPOSITORY / "model_configs", REPOSITORY / "weights")
    source = next(iter(catalog.models.values())).source
    files = read_files(REPOSITORY / "model_configs")
    files[source.name] = edited_text(files[source.name], name, [])
    changed = parse(files, REPOSITORY / "model_configs", REPOSITORY / "weights")
    (spec,) = [spec for spec in changed.checkpoints if spec not in catalog.checkpoints]
    with pytest.raises(CheckpointError, match=r"no such checkpoint|too long"):
        _ = CheckpointFiles.of(spec).checked_folder


FAR = """
family = "beta"
steps = 8
[upstream]
url = "http://10.0.0.5:30010/v1/"
model = "Qwen/Qwen-Image"
api = "sglang"
supports = ["text", "guidance"]
[sampling]
guidance = 3.5
[[models]]
name = "far"
tier = "1K"
price = "0.30"
"""


def test_a_model_of_another_server_is_no_checkpoint_here(configs: Path) -> None:
    (configs / "far.toml").write_text(FAR)
    before, catalog = load_catalog(REPOSITORY / "model_configs", Path("w")), load_catalog(configs, Path("w"))
    assert len(catalog.checkpoints) == len(before.checkpoints)
    (spec,) = catalog.upstream_specs
    assert (spec.name, spec.conditioning, spec.max_references, spec.sampling.guidance) == (
        "Qwen/Qwen-Image", "native", 16, 3.5,
    )  # fmt: skip
    assert spec.upstream in catalog.upstreams
    assert spec.upstream is not None
    assert (spec.upstream.base_url, spec.upstream.api_key_env) == ("http://10.0.0.5:30010/v1", None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[upstream]", 'checkpoint = "x"\n[upstream]', "line 4: checkpoint: belongs to a checkpoint"),
        ("[sampling]", "[runtime]\ncompile = true\n[sampling]", "runtime: belongs to a checkpoint"),
        ("[sampling]", "[sampling]\nscheduler_config = { rho = 7 }", "scheduler_config: belongs to a checkpoint"),
        ("[upstream]", 'conditioning = "img2img"\n[upstream]', "takes no `strength`"),
        ('supports = ["text", "guidance"]', "", "upstream.supports: missing"),
        ('"sglang"', '"darkroom"', "upstream.supports: leave it out"),
        ('"sglang"', '"automatic"', "expected 'darkroom', 'sglang' or 'vllm'"),
        ("http://10.0.0.5:30010/v1/", "10.0.0.5", "upstream.url: got '10.0.0.5'"),
        ("http://10.0.0.5:30010/v1/", "http://10.0.0.5:99999/v1", "invalid port number"),
        ("steps = 8", "", "steps: missing"),
        (FAR[: FAR.index("[sampling]")], 'family = "beta"\nsteps = 8\n', "checkpoint: missing; or an [upstream] table"),
    ],
)  # fmt: skip
def test_errors_of_an_upstream_table_name_the_key(configs: Path, old: str, new: str, message: str) -> None:
    assert old in FAR
    (configs / "far.toml").write_text(FAR.replace(old, new))
    with pytest.raises(CatalogError, match=re.escape(message)):
        load_catalog(configs, Path("weights"))


def test_parts_of_ones_own_stand_beside_the_checkpoint(configs: Path) -> None:
    parts = 'vae = "sdxl-vae-fp16-fix"\ntext_encoder_2 = "clip_g.safetensors"\n'
    edit(configs, "alpha-image-2.toml", "conditioning", f"{parts}conditioning")
    spec = load_catalog(configs, Path("weights")).models["alpha-image-2-count"].checkpoint
    assert spec.parts == (
        ("vae", Path("weights/sdxl-vae-fp16-fix")),
        ("text_encoder_2", Path("weights/clip_g.safetensors")),
    )
    assert {path for _, path in spec.parts} <= set(spec.paths)


def test_a_file_and_a_denoiser_are_one_too_many(configs: Path) -> None:
    edit(configs, "alpha-image-2.toml", "conditioning", 'base = "x"\ndenoiser = "tuned"\nconditioning')
    edit(configs, "alpha-image-2.toml", 'checkpoint   = "starter-alpha"', 'checkpoint = "x.gguf"')
    with pytest.raises(CatalogError, match="denoiser: the file that `checkpoint` names has the denoiser"):
        load_catalog(configs, Path("weights"))


def test_a_folder_of_embeddings_must_be_there(configs: Path, tmp_path: Path) -> None:
    edit(configs, "alpha-image-2.toml", "\n[runtime]", '\n[runtime]\nembedding_folder = "words"')
    with pytest.raises(CatalogError, match=r"runtime\.embedding_folder.*words: there is no such folder"):
        load_catalog(configs, tmp_path)
    (tmp_path / "words").mkdir()
    spec = load_catalog(configs, tmp_path).models["alpha-image-2-count"].checkpoint
    assert spec.runtime.embedding_folder == tmp_path / "words"


def test_an_upscaler_has_no_key_of_drawing(configs: Path) -> None:
    file = configs / "alpha-image-2.toml"
    file.write_text(file.read_text().replace('"img2img"', '"upscale"'))
    with pytest.raises(CatalogError, match="quality: is for checkpoints that draw"):
        load_catalog(configs, configs)
