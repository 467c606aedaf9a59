"""Ideogram 4: it is guided step by step."""

from typing import Any

from pipelines.families.generic import Family


class Ideogram4(Family):
    """Hooks of Ideogram 4, whose call takes a guidance schedule, one number for each step, and ignores a scale beside
    it. A second denoiser makes the unconditional prediction, without a negative prompt."""

    classes = ("Ideogram4*",)
    guidance_argument = "guidance_schedule"
    may_start_late = False  # its latents are rows of patches

    def guidance(self, scale: float, negative_prompt: str, steps: int) -> dict[str, Any]:
        """Return the schedule: the same scale at each step."""
        return {"guidance_schedule": [scale] * steps}
