"""Perturbed-attention guidance: a call changes the denoiser for as long as it draws."""

from pipelines.families.generic import Family


class PerturbedAttention(Family):
    """Hooks of perturbed-attention guidance. Each call replaces attention processors of the denoiser, and restores the
    former ones at its end: calls may follow each other, but not overlap."""

    classes = (
        *("StableDiffusionPAGPipeline", "StableDiffusionPAGImg2ImgPipeline", "StableDiffusionPAGInpaintPipeline"),
        *("StableDiffusionXLPAGPipeline", "StableDiffusionXLPAGImg2ImgPipeline", "StableDiffusionXLPAGInpaintPipeline"),
        *("StableDiffusion3PAGPipeline", "StableDiffusion3PAGImg2ImgPipeline", "SanaPAGPipeline"),
        *("PixArtSigmaPAGPipeline", "KolorsPAGPipeline"),
    )
    at_once = False
