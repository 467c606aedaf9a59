"""Hunyuan-DiT with perturbed-attention guidance."""

from pipelines.families.hunyuan_dit import HunyuanDiT


class HunyuanDiTPAG(HunyuanDiT):
    """Hooks of Hunyuan-DiT with perturbed-attention guidance: a call changes the denoiser while it draws
    (perturbed_attention.py)."""

    classes = ("HunyuanDiTPAG*",)
    at_once = False
