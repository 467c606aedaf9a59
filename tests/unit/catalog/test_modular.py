"""What is known of a modular pipeline before it is loaded: by its index, and by the source of the library."""

from pathlib import Path

import pytest

from pipelines.checkpoints.classes.index import plain_index
from pipelines.checkpoints.classes.source import ModularClass, modular_class
from pipelines.families.task import Task

BLOCKS = '''
class Later(ModularPipeline):
    default_blocks_name = "LaterBlocks"


class Turbo(Later):
    pass


class LaterBlocks(SequentialPipelineBlocks):
    """
    Blocks.

      Components:
          transformer (`Later2DModel`) guider (`ClassifierFreeGuidance`)

      Inputs:
          prompt (`str`):
              What is drawn.
          image (`Image | list`, *optional*):
              References.
          control_image (`Image`, *optional*):
              A map, for a ControlNet.

      Outputs:
          images (`list`):
              What was drawn.
    """

    _workflow_map = WAYS
'''
REPOSITORY = {"pretrained_model_name_or_path": "a-maker/a-model", "type_hint": ["diffusers", "AModel"]}


def found(folder: Path, ways: str, name: str = "Later") -> ModularClass:
    (folder / "modular_pipelines" / "later").mkdir(parents=True)
    (folder / "modular_pipelines" / "later" / "blocks.py").write_text(BLOCKS.replace("WAYS", ways))
    modular = modular_class(folder, name)
    assert modular is not None
    return modular


@pytest.mark.parametrize(
    ("ways", "tasks"),
    [
        ("{'text2image': {}, 'image_conditioned': {}}", {Task.TEXT, Task.NATIVE}),
        ("{'text2image': {}, 'image2image': {}, 'inpainting': {}}", {Task.TEXT, Task.REDRAW, Task.INPAINT}),
        ("{'img2img': {}, 'image_conditioned_inpainting': {}}", {Task.REDRAW, Task.INPAINT}),
        ("None", {Task.TEXT, Task.NATIVE}),
    ],
)
def test_tasks_are_the_ways_through_the_blocks(tmp_path: Path, ways: str, tasks: set[Task]) -> None:
    assert found(tmp_path, ways).tasks == tasks


def test_inputs_and_outputs_are_documented_and_a_guider_takes_a_scale(tmp_path: Path) -> None:
    """Also of a class that derives from another."""
    modular = found(tmp_path, "None", "Turbo")
    required = [name for name, each in modular.inputs.items() if each.default is each.empty]
    assert (set(modular.inputs), required) == ({"prompt", "image", "guidance_scale"}, ["prompt"])
    assert modular.outputs == {"images"}


def test_a_class_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert modular_class(tmp_path, "Nobody") is None
    assert modular_class(None, "Nobody") is None


def test_components_of_steps_that_no_call_takes_are_left_out() -> None:
    taken = ("transformer", "text_encoder_2", "text_conditioner", "vae")
    unused = ("controlnet", "image_encoder", "prompt_upsampler", "prompt_upsampler_processor", "pe", "pe_tokenizer")
    index = {name: ["diffusers", "AModel", REPOSITORY] for name in (*taken, *unused)}
    left = {name: ["diffusers", "AModel"] for name in taken}
    assert plain_index({**index, "is_distilled": True}) == {**left, "is_distilled": True}
    assert plain_index({"image_encoder": ["transformers", "AModel"]}) == {"image_encoder": ["transformers", "AModel"]}
