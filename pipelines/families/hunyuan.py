"""Hunyuan-DiT would choose its own sizes. HunyuanImage 2.1 is guided by a guider, or an input of the denoiser."""

from collections.abc import Iterator
from typing import ClassVar

from pipelines.families.generic import Call, Config, Family


class HunyuanDiT(Family):
    """Hooks of Hunyuan-DiT, whose call draws the nearest of ten sizes of about a megapixel, unless
    `use_resolution_binning` is false."""

    classes = ("HunyuanDiT*",)
    always: ClassVar = {"use_resolution_binning": False}


class HunyuanDiTPAG(HunyuanDiT):
    """Hooks of Hunyuan-DiT with perturbed-attention guidance: a call changes the denoiser while it draws
    (perturbed_attention.py)."""

    classes = ("HunyuanDiTPAG*",)
    at_once = False


class HunyuanImage(Family):
    """Hooks of HunyuanImage 2.1, whose call takes a guidance scale for a distilled denoiser. Other denoisers are guided
    by a guider, of which each call has its own."""

    classes = ("HunyuanImage*",)
    guidance_argument = "distilled_guidance_scale"

    def takes_guidance(self, call: Call, config: Config, denoiser_config: Config) -> bool:
        """Return True: the denoiser takes a guidance scale, or a guider does."""
        return True

    def signs_of_few_steps(self, denoiser_config: Config) -> Iterator[str]:
        """Yield that the denoiser predicts the mean of several steps."""
        if denoiser_config.get("use_meanflow"):
            yield "the denoiser's config: use_meanflow is true"
