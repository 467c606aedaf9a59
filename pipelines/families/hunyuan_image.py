"""HunyuanImage 2.1: a guider, or an input of the denoiser, guides it."""

from collections.abc import Iterator

from pipelines.families.generic import Call, Config, Family

EMBEDS = "guidance_embeds"  # of the denoiser's config: it is distilled, and has guidance as an input


class HunyuanImage(Family):
    """The call takes the scale for a distilled denoiser; that of others is the guider's, which each call has for
    itself."""

    classes = ("HunyuanImage*",)
    guidance_argument = "distilled_guidance_scale"

    def takes_guidance(self, call: Call, config: Config, denoiser_config: Config) -> bool:
        """Return True: one of both is there."""
        return True

    def signs_of_few_steps(self, denoiser_config: Config) -> Iterator[str]:
        """Yield that the denoiser predicts the mean of several steps."""
        if denoiser_config.get("use_meanflow"):
            yield "the denoiser's config: use_meanflow is true"
