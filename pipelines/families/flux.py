"""FLUX.1: guidance is an input of the denoiser. Kontext would choose its own sizes."""

from collections.abc import Iterator
from typing import Any, ClassVar

from pipelines.families.generic import Call, Config, Family

EMBEDS = "guidance_embeds"  # of the denoiser's config: whether it has that input


class Flux(Family):
    """Hooks of FLUX.1 [dev] and [schnell], their controls, Fill and Redux. FLUX.2 and FLUX.3 need none."""

    classes = ("Flux[!23]*",)
    embeds_guidance = True
    short_names = ("flux",)
    distilled_words = ("schnell",)
    adapter_weights: ClassVar = {"hyper": 0.125}

    def takes_guidance(self, call: Call, config: Config, denoiser_config: Config) -> bool:
        """Return whether the denoiser has the input: [schnell] has none."""
        return super().takes_guidance(call, config, denoiser_config) and denoiser_config.get(EMBEDS) is not False

    def takes_negative_prompt(self, call: Call, config: Config) -> bool:
        """Return False: a negative prompt acts with true_cfg_scale alone, which stays off."""
        return False

    def signs_of_few_steps(self, denoiser_config: Config) -> Iterator[str]:
        """Yield that the denoiser has no input for guidance, as that of [schnell]."""
        if denoiser_config.get(EMBEDS) is False:
            yield f"the denoiser's config: {EMBEDS} is false"


class FluxKontext(Flux):
    """Hooks of FLUX.1 Kontext, whose call scales references to one of 17 sizes, and draws a megapixel, unless it is
    told not to."""

    classes = ("FluxKontext*",)
    reads_any_size = True

    def size_arguments(self, width_px: int, height_px: int) -> dict[str, Any]:
        """Return the size, and the arguments that keep the call from scaling it and the references."""
        return {"width": width_px, "height": height_px, "max_area": width_px * height_px, "_auto_resize": False}
