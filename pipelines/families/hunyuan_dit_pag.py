"""Hunyuan-DiT with perturbed-attention guidance."""

from pipelines.families.hunyuan_dit import HunyuanDiT


class HunyuanDiTPAG(HunyuanDiT):
    """A call changes the denoiser for as long as it draws (perturbed_attention.py)."""

    classes = ("HunyuanDiTPAG*",)
    at_once = False
