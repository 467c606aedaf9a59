"""Ideogram 4: it is guided step by step."""

from typing import Any

from pipelines.families.generic import Family


class Ideogram4(Family):
    """Its call has a schedule of guidance, of as many numbers as steps, which a scale beside it does not replace. What
    is not there is predicted by a second denoiser, which reads no negative prompt."""

    classes = ("Ideogram4*",)
    guidance_argument = "guidance_schedule"
    may_start_late = False  # its latents are rows of patches

    def guidance(self, scale: float, negative_prompt: str, steps: int) -> dict[str, Any]:
        """Return the schedule: the same scale at each step."""
        return {"guidance_schedule": [scale] * steps}
