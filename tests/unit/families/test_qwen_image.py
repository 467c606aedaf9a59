"""Qwen-Image, by the calls of the installed diffusers."""

import pytest

from pipelines.checkpoints.classes.source import PipelineSource
from pipelines.families.registry import all_marks, family_of

CLASSES = ("QwenImagePipeline", "QwenImageEditPipeline", "QwenImageEditPlusPipeline", "QwenImageInpaintPipeline")


@pytest.mark.parametrize("class_name", CLASSES)
def test_guidance_is_true_cfg_scale(class_name: str) -> None:
    call, family = PipelineSource().parameters(class_name) or {}, family_of(class_name)
    assert family.takes_guidance(call, {}, {})
    assert family.takes_negative_prompt(call, {})
    assert family.guidance(4.0, "", 4).keys() <= call.keys()


def test_a_blank_negative_prompt_stands_for_none() -> None:
    assert family_of(CLASSES[0]).guidance(4.0, "", 4) == {"true_cfg_scale": 4.0, "negative_prompt": " "}
    assert family_of(CLASSES[0]).guidance(4.0, "blurred", 4)["negative_prompt"] == "blurred"


def test_later_edits_need_a_config_that_says_so() -> None:
    assert all_marks()["__index_timestep_zero__"].config_key == "zero_cond_t"


@pytest.mark.parametrize(("side_px", "resolution"), [(256, 640), (640, 640), (832, 640), (848, 1024), (2048, 1024)])
def test_layers_are_drawn_in_the_nearest_of_two_areas(side_px: int, resolution: int) -> None:
    family = family_of("QwenImageLayeredPipeline")
    call = PipelineSource().parameters("QwenImageLayeredPipeline") or {}
    assert family.size_arguments(side_px, side_px) == {"resolution": resolution}
    assert {family.layers, "resolution"} <= call.keys()
    assert not family.draws_text(call)
