"""The linear map from latents to colours, and what two steps say of the end."""

import math

import numpy as np
import pytest
import torch

from pipelines.images.previews import PreviewMap, foresee

COLOURS = torch.tensor([[0.2, 0.1, 0.0], [0.0, 0.2, 0.1], [0.1, 0.0, 0.2], [0.05, 0.05, 0.05]])


def picture(rows: int, columns: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:  # type: ignore[type-arg]
    """Latents (4, rows, columns), and the pixels of a codec that is linear: 8 px a latent, plain."""
    latents = torch.randn(4, rows, columns, generator=torch.Generator().manual_seed(seed))
    colours = (0.5 + torch.einsum("chw,cr->hwr", latents, COLOURS)).clamp(0, 1)
    return latents, (colours.repeat_interleave(8, 0).repeat_interleave(8, 1) * 255).round().byte().numpy()


@pytest.mark.parametrize("packed", [False, True])
def test_the_map_draws_a_picture_that_it_has_not_seen(packed: bool) -> None:
    def laid_out(latents: torch.Tensor) -> torch.Tensor:
        return latents.flatten(1).T if packed else latents

    fitted = PreviewMap()
    for seed in range(3):
        latents, pixels = picture(12, 20, seed)
        fitted.learn(laid_out(latents), pixels)
    latents, pixels = picture(12, 20, seed=9)
    shown = fitted.draw(laid_out(latents), width=160, height=96)
    assert shown is not None
    assert shown.shape == (96, 160, 3)
    assert np.abs(shown[4::8, 4::8].astype(int) - pixels[4::8, 4::8]).mean() < 16


def test_there_is_no_preview_before_a_picture_has_been_drawn() -> None:
    assert PreviewMap().draw(torch.zeros(4, 8, 8), width=64, height=64) is None


@pytest.mark.parametrize("kind", ["flow", "ddim"])
def test_two_steps_foresee_the_end(kind: str) -> None:
    x0, noise = torch.randn(4, 8, 8), torch.randn(4, 8, 8)

    def share(t: float) -> tuple[float, float]:
        return (1 - t, t) if kind == "flow" else (math.cos(t), math.sin(t))

    before, after = (a * x0 + s * noise for a, s in (share(0.9), share(0.7)))
    assert torch.allclose(foresee(before, after, share(0.9), share(0.7)), x0, atol=1e-4)
