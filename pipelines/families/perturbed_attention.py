"""Perturbed-attention guidance: a call changes the denoiser for as long as it draws."""

from pipelines.families.generic import Family


class PerturbedAttention(Family):
    """Each call replaces attention processors of the denoiser, and puts back at its end what it has found, so that two
    of them one after another are what each is alone, and two at once are not."""

    classes = (
        *("StableDiffusionPAGPipeline", "StableDiffusionPAGImg2ImgPipeline", "StableDiffusionPAGInpaintPipeline"),
        *("StableDiffusionXLPAGPipeline", "StableDiffusionXLPAGImg2ImgPipeline", "StableDiffusionXLPAGInpaintPipeline"),
        *("StableDiffusion3PAGPipeline", "StableDiffusion3PAGImg2ImgPipeline", "SanaPAGPipeline"),
        *("PixArtSigmaPAGPipeline", "KolorsPAGPipeline"),
    )
    at_once = False
