"""A family's special case is one file: it is found, its hooks are documented, and nothing else names the family."""

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import pipelines.families
from pipelines.checkpoints.classes.source import PipelineSource
from pipelines.families import generic, registry
from pipelines.families.generic import Family
from pipelines.families.registry import all_families, family_of
from server.data_folders import REPOSITORY

SHARED = {"generic", "registry", "task"}  # every other module is a family
FILES = sorted(module.name for module in pkgutil.iter_modules(pipelines.families.__path__) if module.name not in SHARED)
NAMES = re.compile(
    r"qwen.?image|flux|sdxl|stable.?diffusion|kontext|z.?image(?!s)|\bglm|\bsana\b|pixart|hunyuan|lumina|cogview|chroma(1|pipeline)|"
    r"hidream|aura.?flow|kolors|bria|schnell|klein|playground|_auto_resize|guidance_embeds",
    re.IGNORECASE,
)


@pytest.fixture
def found_anew() -> Iterator[None]:
    """What is known of families is forgotten before and after the test."""
    caches = (registry.all_families, registry.family_of, registry.all_marks)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


def test_every_file_has_a_family_that_is_found() -> None:
    modules = [type(family).__module__.rpartition(".")[2] for family in all_families()]
    assert list(dict.fromkeys(modules)) == FILES
    assert all(type(family).__doc__ for family in all_families())


def test_a_strangers_file_is_all_that_a_family_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found_anew: None
) -> None:
    (tmp_path / "new_model.py").write_text(
        "from pipelines.families.generic import Family\n\n\n"
        "class NewModel(Family):\n"
        '    classes = ("NewModel*",)\n'
        '    guidance_argument = "cfg"\n'
    )
    monkeypatch.setattr(pipelines.families, "__path__", [*pipelines.families.__path__, str(tmp_path)])
    arguments = family_of("NewModelImg2ImgPipeline").guidance(2.0, "", 4)
    assert arguments == {"cfg": 2.0, "negative_prompt": None}


def test_every_hook_says_what_it_is() -> None:
    source = ast.parse(Path(generic.__file__).read_text())
    (family,) = (node for node in source.body if isinstance(node, ast.ClassDef) and node.name == "Family")
    lines = Path(generic.__file__).read_text().splitlines()
    for node in family.body:
        if isinstance(node, ast.AnnAssign):
            assert lines[node.lineno - 2].lstrip().startswith("# "), ast.unparse(node)
        if isinstance(node, ast.FunctionDef):
            assert (ast.get_docstring(node) or "").startswith(("Return", "Yield")), node.name


def test_a_family_changes_hooks_alone() -> None:
    """A name that the generic family lacks would be asked by nobody."""
    hooks = {name for name, _ in inspect.getmembers(Family)}
    for family in all_families():
        own = {name for name in vars(type(family)) if not name.startswith("__")}
        assert own <= hooks, f"{type(family).__name__}: {own - hooks}"


def test_patterns_are_of_classes_that_diffusers_has_and_of_one_family() -> None:
    names = PipelineSource()._folders
    patterns = [pattern for family in all_families() for pattern in family.classes]
    assert len(patterns) == len(set(patterns))
    for pattern in patterns:
        assert any(fnmatchcase(name, pattern) for name in names), pattern


@pytest.mark.parametrize(
    ("class_name", "family"),
    [
        ("FluxPipeline", "Flux"),
        ("FluxControlNetInpaintPipeline", "Flux"),
        ("FluxKontextInpaintPipeline", "FluxKontext"),
        ("Flux2KleinPipeline", "Family"),
        ("QwenImageEditPlusPipeline", "QwenImage"),
        ("StableDiffusionControlNetPipeline", "StableDiffusion"),
        ("StableDiffusionXLInpaintPipeline", "StableDiffusionXL"),
        ("StableDiffusion3Pipeline", "StableDiffusion3"),
        ("ZImagePipeline", "ZImage"),
        ("SanaPipeline", "Family"),
        (None, "Family"),
    ],
)
def test_the_longest_pattern_decides(class_name: str | None, family: str) -> None:
    assert type(family_of(class_name)).__name__ == family


def test_nothing_outside_names_a_family() -> None:
    """Not in comments either."""
    rooms = [REPOSITORY / "pipelines" / room for room in ("catalog", "device", "images", "protocol")]
    named = [
        f"{file.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for room in rooms
        for file in sorted(room.rglob("*.py"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if NAMES.search(line)
    ]
    assert named == []
