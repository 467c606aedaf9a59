"""HunyuanImage 2.1: a guider, or an input of the denoiser, guides it."""

from collections.abc import Iterator

from pipelines.families.generic import Call, Config, Family

EMBEDS = "guidance_embeds"  # of the denoiser's config: it is distilled, and has guidance as an input


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
