"""Qwen-Image, by the calls of the installed diffusers."""

import pytest

from pipelines.catalog.call_signature import PipelineSource
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
