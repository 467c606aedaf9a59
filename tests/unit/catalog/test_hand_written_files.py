# ruff: noqa: E501 (a message is one line)
"""What a catalog file that was edited by hand says of a mistake: the line, the key, and what would be right."""

import shutil
from pathlib import Path

import pytest

from server.catalog.images import CatalogError, load_catalog

REPOSITORY = Path(__file__).resolve().parents[3]
FILE = """\
checkpoint     = "sdxl"
family         = "alpha"
conditioning   = "img2img"
native_area_px = 1048576
steps          = 20

[sampling]
guidance = 4.0

[runtime]
dtype = "auto"

[[models]]
name  = "mine"
tier  = "1K"
price = "0.10"
"""
MISTAKES = [
    ('"sdxl"', "sdxl", 'not valid TOML: Invalid value (at line 1, column 18): checkpoint     = sdxl (text needs quotes)'),
    ("steps ", "step ", "line 5: step: unknown key; did you mean 'steps'?"),
    ("guidance =", "guidence =", "line 8: sampling.guidence: unknown key; did you mean 'guidance'?"),
    ("[runtime]", "[runtimes]", "line 10: runtimes: unknown key; did you mean 'runtime'?"),
    ("guidance = 4.0", 'scheduler_config = "trailing"', "line 8: sampling.scheduler_config: got 'trailing', expected a table"),
    ("guidance = 4.0", "scheduler_config = { sigma_max = [1] }", "line 8: sampling.scheduler_config.sigma_max: got [1], expected text in quotes, a number, true or false"),
    ("guidance = 4.0", "steps = 4", "line 8: sampling.steps: unknown key; it belongs to the top of the file, above the first [table]"),
    ("guidance = 4.0", "eta = 4.0", "line 8: sampling.eta: unknown key; expected one of guidance, strength, negative_prompt, scheduler, shift, refine_strength, scheduler_config, long_prompt"),
    ("[[models]]", "[models]", "line 13: models: got a table, expected a list of tables: write [[models]], in two brackets"),
    ('"1K"', '"1k"', "line 15: models[0].tier: got '1k', expected '1K', '2K' or '4K'"),
    ('"1K"', '"2K"', "line 15: models[0].tier: got '2K', expected '1K' for 'mine' (a name with hd-count is 2K, with 4k-count 4K, any other 1K)"),
    ('"mine"', '"my model"', "line 14: models[0].name: got 'my model', expected a name of letters, digits, '.', '_', '-' and '/'"),
    ('"mine"', '"beta-3-pro-image-count"', "line 14: models[0].name: 'beta-3-pro-image-count' is served by beta-3-pro.toml too"),
    ('"0.10"', "0.10", 'line 16: models[0].price: got 0.1, expected text in quotes: "0.1"'),
    ('"0.10"', '"0,10"', "line 16: models[0].price: got '0,10', expected CNY a call, in quotes: \"0.10\""),
    ('"0.10"', '"0.10"\nratios = "1:1"', "line 17: models[0].ratios: got '1:1', expected a list: [\"1:1\"]"),
    ('"0.10"\n', '"0.10"\n[[models]]\nname = "mine"\ntier = "1K"\nprice = "1"\n', "line 18: models[1].name: 'mine' is there twice"),
    ("= 20", '= "20"', "line 5: steps: got '20', expected a whole number, without quotes"),
    ("= 20", "= 500", "line 5: steps: got 500, expected at most 200"),
    ("= 4.0", '= "4"', "line 8: sampling.guidance: got '4', expected a number, without quotes"),
    ("1048576", "1024", "line 4: native_area_px: got 1024, expected at least 4096, an area in pixels, such as 1048576 for 1024 x 1024"),
    ('= "auto"', '= "bf16"', "line 11: runtime.dtype: got 'bf16', expected 'auto', 'float32', 'bfloat16' or 'float16'"),
    ('dtype = "auto"', "compile = 1", "line 11: runtime.compile: got 1, expected true or false, without quotes"),
    ('dtype = "auto"', 'cache = "first-block"', "line 11: runtime.cache: got 'first-block', expected a table with method, threshold, interval, mag_ratios"),
    ('dtype = "auto"', 'loras = [{ path = "a.bin" }]', "line 11: runtime.loras[0].path: got 'a.bin', expected a .safetensors file"),
    ('dtype = "auto"', 'lora_folder = ""', "line 11: runtime.lora_folder: got '', expected text that is not empty"),
    ('"0.10"', '"0.10"\nratios = []', "line 17: models[0].ratios: got [], expected a list that is not empty"),
    ('[runtime]\ndtype = "auto"', "", ""),
    ("= 20", '= 20\nruntime = "fast"', 'not valid TOML: Cannot overwrite a value (at line 11, column 9): [runtime]'),
    ("= 20", '= 20\nschedulers = ["euler"]', "line 6: schedulers[0]: got 'euler', expected a diffusers class, such as 'EulerDiscreteScheduler'"),
]  # fmt: skip


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPOSITORY / "model_configs", tmp_path / "configs"))


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES, ids=[row[1] or "nothing" for row in MISTAKES])
def test_a_mistake_gets_one_line_that_says_what_is_right(configs: Path, old: str, new: str, message: str) -> None:
    assert old in FILE
    file = configs / "mine.toml"
    file.write_text(FILE.replace(old, new, 1))
    try:
        load_catalog(configs, Path("weights"))
        said = ""
    except CatalogError as error:
        said = str(error)
    assert said == (f"{file}: {message}" if message else "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"1:1" = [1024, 1024]', '"1:1" = [1024, 1000]', "1K.1:1: got 1024 x 1000, expected multiples of 16 from 256 on"),
        ('"1:1" = [1024, 1024]', '"1:1" = [0, 1024]', "1K.1:1: got 0 x 1024, expected multiples of 16 from 256 on"),
        ('"1:1" = [1024, 1024]', '"1:1" = [2048, 2048]', "1K.1:1: got 2048 x 2048: this table draws 1K, at most 1.85 megapixels."),
        ('"1:1" = [1024, 1024]', '"1:1" = [1024, 1200]', "1K.1:1: got 1024 x 1200, which is another ratio"),
        ('"21:9" = [2016, 864]', '"21-9" = [2016, 864]', "1K.21-9: expected a ratio, such as '16:9'"),
    ],
)  # fmt: skip
def test_presets_are_sizes_of_their_ratio_and_tier(configs: Path, old: str, new: str, message: str) -> None:
    file = configs / "presets.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(CatalogError) as refused:
        load_catalog(configs, Path("weights"))
    line = text[: text.index(old)].count("\n") + 1
    assert str(refused.value) == f"{file}: line {line}: {message}"


def test_runtime_is_a_table_or_one_word(configs: Path) -> None:
    file = configs / "mine.toml"
    for word, message in (
        ("auto", None),
        ("fast", "line 6: runtime: got 'fast', expected 'auto', or a table [runtime]"),
    ):
        text = FILE.replace('[runtime]\ndtype = "auto"\n', "").replace("= 20", f'= 20\nruntime = "{word}"')
        file.write_text(text)
        if message is None:
            assert load_catalog(configs, Path("weights")).models["mine"].checkpoint.runtime.auto
        else:
            with pytest.raises(CatalogError) as refused:
                load_catalog(configs, Path("weights"))
            assert str(refused.value) == f"{file}: {message}"


def test_a_folder_of_adapters_must_be_there(configs: Path, tmp_path: Path) -> None:
    (tmp_path / "loras").mkdir()
    (tmp_path / "ink.safetensors").touch()
    references = (
        f'[references]\n{FILE.partition("family")[0]}conditioning = "native"\nnative_area_px = 4096\nsteps = 4\n'
    )
    for name, problem in (
        ("loras", None),
        ("Lora", f"there is no such folder; did you mean {tmp_path / 'loras'}?"),
        ("ink.safetensors", "not a folder"),
    ):
        setting = f'lora_folder = "{name}"'
        own = FILE.replace('dtype = "auto"', setting)
        other = FILE.replace("[[models]]", f"{references}[references.runtime]\n{setting}\n[[models]]")
        for text, key in ((own, "line 11: runtime"), (other, "line 19: references.runtime")):
            (configs / "mine.toml").write_text(text)
            if problem is None:
                assert "mine" in load_catalog(configs, tmp_path).models
                continue
            with pytest.raises(CatalogError) as refused:
                load_catalog(configs, tmp_path)
            assert str(refused.value) == f"{configs / 'mine.toml'}: {key}.lora_folder: {tmp_path / name}: {problem}"


def test_a_mark_before_the_first_character_is_no_mistake(configs: Path) -> None:
    (configs / "mine.toml").write_text(FILE, encoding="utf-8-sig")
    assert "mine" in load_catalog(configs, Path("weights")).models
