"""Every pipeline class of the installed diffusers draws images, or is refused by one true line before it is loaded.

A class that is in neither list fails here, so that a new diffusers is noticed: make a tiny checkpoint of it in
tests/support/tiny_families/, or say in its family's file why it can't draw.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.checkpoints.classes.facts import why_refused
from pipelines.checkpoints.classes.source import PipelineSource
from pipelines.families.registry import family_of
from pipelines.families.task import Task
from server.data_folders import REPOSITORY
from tests.support.tiny_families.modular import CLASSES as MODULAR
from tests.support.weight_files import flux_folder, inspect_checkpoint

SOURCE = PipelineSource()
ROWS = re.compile(
    r"^\| (?P<name>\S+) \| `(?P<kind>\w+)` \| [^|]+ \| (?P<references>[^|]+) \| (?P<mask>\w+) ", re.MULTILINE
)


@pytest.fixture(scope="module")
def judged() -> dict[str, str | None]:
    """All classes of the installed diffusers, with why they are refused."""
    return {name: why_refused(name, SOURCE) for name in _with_a_call(SOURCE)}


def drawn_classes() -> Iterator[str]:
    """The classes that `make families` has drawn with: those of the tiny checkpoints, and those that draw other tasks
    on the same weights. It writes no row of a checkpoint with a fault."""
    for row in ROWS.finditer((REPOSITORY / "docs" / "reference" / "families.md").read_text()):
        yield row["kind"]
        siblings = family_of(row["kind"]).siblings(row["kind"])
        if "img2img" in row["references"]:
            yield siblings[Task.REDRAW]
        if row["mask"] == "yes":
            yield siblings[Task.INPAINT]


@pytest.mark.nightly
def test_every_class_is_drawn_or_refused(judged: dict[str, str | None]) -> None:
    drawn = set(drawn_classes())
    taken = {name for name, why in judged.items() if why is None}
    inherited = {name for name in taken if SOURCE.ancestors(name) & drawn and not _has_own_call(name)}
    assert taken - drawn - inherited == set(), "neither drawn by `make families` nor refused by a family"
    assert {name for name in drawn & judged.keys() if judged[name] is not None} == set(), "drawn, and refused"


def test_every_modular_class_is_drawn_or_refused() -> None:
    assert SOURCE.folder is not None
    lists = (SOURCE.folder / "modular_pipelines" / "__init__.py").read_text()
    found = set(re.findall(r"\w+ModularPipeline\b", lists))
    drawn = {class_name for class_name, _ in MODULAR.values()}
    refused = {name for name in found if why_refused(name, SOURCE) is not None}
    assert found - drawn - refused == set()
    assert drawn & refused == set()


@pytest.mark.parametrize(
    ("class_name", "why"),
    [
        ("WanPipeline", "WanPipeline draws videos, and Darkroom images"),
        ("WanVideoToVideoPipeline", "WanVideoToVideoPipeline draws videos, and Darkroom images"),
        ("CogVideoXVideoToVideoPipeline", "draws videos"),
        ("Kandinsky6SRPipeline", "draws videos"),
        ("StableAudioPipeline", "makes sound"),
        ("LLaDA2Pipeline", "writes text"),
        ("DiffusionGemmaPipeline", "writes text"),
        ("RFD4ProteinaPipeline", "and no images"),
        ("FluxPriorReduxPipeline", "prepares embeddings for another pipeline"),
        ("MarigoldDepthPipeline", "estimates a map of an image"),
        ("KandinskyV22Pipeline", "it needs image_embeds, which calls here do not have"),
        ("DiTPipeline", "it needs class_labels, which calls here do not have"),
        ("VisualClozePipeline", "it needs task_prompt, which calls here do not have"),
        ("DDPMPipeline", "it takes no prompt"),
        ("ShapEPipeline", "it has neither a U-Net nor a transformer"),
        ("StableDiffusionControlNetPipeline", "name that in [[controlnets]]"),
        ("StableDiffusionXLAdapterPipeline", "name that in [[t2i_adapters]]"),
        ("StableDiffusionLatentUpscalePipeline", "it enlarges an image"),
        ("StableCascadeDecoderPipeline", "diffusers no longer maintains it"),
        ("CogView4ControlPipeline", "noise of torch's global generator"),
        ("ChromaInpaintPipeline", "ChromaPipeline draws with the same parts"),
    ],
)
def test_the_reason_is_true_and_is_told_at_inspect(class_name: str, why: str, tmp_path: Path) -> None:
    if not SOURCE.has(class_name):
        pytest.skip("not in this diffusers")
    folder = flux_folder(tmp_path / "checkpoint")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"_class_name": class_name}))
    told = [problem for problem in inspect_checkpoint(folder).problems if class_name in problem]
    assert len(told) == 1
    assert why in told[0]
    assert "\n" not in told[0]


@pytest.mark.parametrize(
    "name", ["FluxPipeline", "OmniGenPipeline", "StableDiffusionImageVariationPipeline", "LDMTextToImagePipeline"]
)
def test_a_class_that_draws_is_not_refused(name: str) -> None:
    """Among them those whose signature is odd: a required prompt, a required image."""
    assert why_refused(name, SOURCE) is None


def test_a_new_class_is_judged_by_its_source(tmp_path: Path) -> None:
    """As a later diffusers may have one."""
    folder = tmp_path / "pipelines" / "later"
    folder.mkdir(parents=True)
    lists = [f'_import_structure["later"] = {json.dumps(list(LATER))}']
    (tmp_path / "pipelines" / "__init__.py").write_text("\n".join(["_import_structure = {}", *lists]))
    (folder / "pipeline_later.py").write_text("\n\n".join(text for text, _ in LATER.values()))
    source = PipelineSource(tmp_path)
    assert {name: why_refused(name, source) for name in _with_a_call(source)} == {
        name: why for name, (_, why) in LATER.items()
    }


def _with_a_call(source: PipelineSource) -> list[str]:
    return sorted(name for name in source._folders if source.parameters(name) is not None)


def _has_own_call(class_name: str) -> bool:
    found = SOURCE._find(class_name)
    assert found is not None
    return "__call__" in {node.name for node in found.body if isinstance(node, ast.FunctionDef)}


def _class(name: str, parts: str, call: str, output: str) -> str:
    return (
        f"class {name}(DiffusionPipeline):\n"
        f"    def __init__(self, {parts}): pass\n"
        f"    def __call__(self, {call}): return Output({output}=1)"
    )


LATER: dict[str, tuple[str, str | None]] = {
    "APipeline": (_class("APipeline", "transformer", "prompt=None, image=None", "images"), None),
    "BPipeline": (_class("BPipeline", "unet", "prompt", "image"), None),
    "CPipeline": (_class("CPipeline", "unet", "prompt", "audios"), "CPipeline makes sound, and Darkroom images"),
    "DPipeline": (
        _class("DPipeline", "transformer", "prompt, pose", "images"),
        "DPipeline: it needs pose, which calls here do not have",
    ),
    "EPipeline": (
        _class("EPipeline", "transformer", "prompt, control_image=None", "images"),
        None,
    ),
    "FPipeline": (
        _class("FPipeline", "prior", "prompt", "images"),
        "FPipeline: it has neither a U-Net nor a transformer",
    ),
    "GPipeline": (_class("GPipeline", "unet", "prompt", "meshes"), "GPipeline returns meshes, and no images"),
}
