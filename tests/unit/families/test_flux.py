"""FLUX.1 and Kontext, by the calls of the installed diffusers."""

from pipelines.checkpoints.classes.source import PipelineSource
from pipelines.families.registry import family_of

FLUX, KONTEXT = family_of("FluxPipeline"), family_of("FluxKontextPipeline")
CALL = PipelineSource().parameters("FluxPipeline") or {}


def test_guidance_is_an_input_of_the_denoiser_if_it_has_one() -> None:
    assert FLUX.embeds_guidance
    assert FLUX.takes_guidance(CALL, {}, {"guidance_embeds": True})
    assert not FLUX.takes_guidance(CALL, {}, {"guidance_embeds": False})
    assert FLUX.guidance(3.5, "", 4) == {"guidance_scale": 3.5, "negative_prompt": None}


def test_a_negative_prompt_has_no_effect() -> None:
    assert "negative_prompt" in CALL
    assert not FLUX.takes_negative_prompt(CALL, {})


def test_a_denoiser_without_that_input_was_distilled() -> None:
    assert list(FLUX.signs_of_few_steps({"guidance_embeds": False})) == [
        "the denoiser's config: guidance_embeds is false"
    ]
    assert list(FLUX.signs_of_few_steps({"guidance_embeds": True})) == []


def test_kontext_is_told_to_keep_its_sizes() -> None:
    call = PipelineSource().parameters("FluxKontextPipeline") or {}
    arguments = KONTEXT.size_arguments(1024, 512)
    assert arguments == {"width": 1024, "height": 512, "max_area": 1024 * 512, "_auto_resize": False}
    assert arguments.keys() <= call.keys()
    assert KONTEXT.reads_any_size
    assert not KONTEXT.takes_negative_prompt(call, {})
