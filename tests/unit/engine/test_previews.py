"""The linear map from latents to colours, and x0 from what a step predicts."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    FlowMatchLCMScheduler,
    LCMScheduler,
    SCMScheduler,
    UniPCMultistepScheduler,
)

from pipelines.images.denoising.previews import PreviewMap, predict_x0

COLOURS = torch.tensor([[0.2, 0.1, 0.0], [0.0, 0.2, 0.1], [0.1, 0.0, 0.2], [0.05, 0.05, 0.05]])


def image(rows: int, columns: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:  # type: ignore[type-arg]
    """Latents (4, rows, columns), and the pixels of a codec that is linear: 8 px a latent, plain."""
    latents = torch.randn(4, rows, columns, generator=torch.Generator().manual_seed(seed))
    colours = (0.5 + torch.einsum("chw,cr->hwr", latents, COLOURS)).clamp(0, 1)
    return latents, (colours.repeat_interleave(8, 0).repeat_interleave(8, 1) * 255).round().byte().numpy()


@pytest.mark.parametrize("packed", [False, True])
def test_the_map_renders_an_image_that_it_was_not_fitted_to(packed: bool) -> None:
    def laid_out(latents: torch.Tensor) -> torch.Tensor:
        return latents.flatten(1).T if packed else latents

    fitted = PreviewMap()
    for seed in range(3):
        latents, pixels = image(12, 20, seed)
        fitted.update(laid_out(latents), pixels)
    latents, pixels = image(12, 20, seed=9)
    preview = fitted.render(laid_out(latents), width=160, height=96)
    assert preview is not None
    assert preview.shape == (96, 160, 3)
    assert np.abs(preview[4::8, 4::8].astype(int) - pixels[4::8, 4::8]).mean() < 16


def test_a_class_that_draws_its_own_size_and_its_references_beside_is_seen_in_the_size_that_was_asked_for() -> None:
    """The grid has the size that is drawn: 12 x 20 of 8 px."""
    fitted = PreviewMap()
    fitted.update(*image(12, 20, seed=0))
    latents, _ = image(12, 20, seed=9)
    for shown in (latents.flatten(1).T, torch.stack([torch.zeros(4, 1, 12, 20), latents[:, None]])):
        preview = fitted.render(shown, width=80, height=47)
        assert preview is not None
        assert preview.shape == (47, 80, 3)
        assert np.abs(preview - fitted.render(latents, width=80, height=47)).max() == 0  # type: ignore[operator]


def rendered(fitted: PreviewMap) -> np.ndarray:  # type: ignore[type-arg]
    latents, _ = image(12, 20, seed=9)
    preview = fitted.render(latents, width=160, height=96)
    assert preview is not None
    return preview.astype(int)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_latents_that_are_not_numbers_change_nothing(value: float) -> None:
    fitted = PreviewMap()
    fitted.update(*image(12, 20, seed=0))
    before = rendered(fitted)
    latents, _ = image(12, 20, seed=1)
    latents[0, 3, 4] = value
    assert fitted.render(latents, width=160, height=96) is None
    fitted.update(latents, np.zeros((96, 160, 3), np.uint8))
    assert (rendered(fitted) == before).all()


@pytest.mark.parametrize("scale", [1e3, 1e10, 1e25, 1e38])
@pytest.mark.parametrize("first", [False, True])
def test_latents_of_another_scale_are_soon_forgotten(scale: float, first: bool) -> None:
    """Also where they come first, and where their products would be infinite."""
    fitted, plain = PreviewMap(), PreviewMap()
    if not first:
        fitted.update(*image(12, 20, seed=0))
    odd = torch.full((4, 12, 20), scale)
    odd[0, ::2] = -scale
    fitted.update(odd, np.zeros((96, 160, 3), np.uint8))
    for seed in range(1, 21):
        fitted.update(*image(12, 20, seed))
        plain.update(*image(12, 20, seed))
    assert np.abs(rendered(fitted) - rendered(plain)).mean() < 4


def test_there_is_no_preview_before_an_image_has_been_drawn() -> None:
    assert PreviewMap().render(torch.zeros(4, 8, 8), width=64, height=64) is None


FLOW = FlowMatchEulerDiscreteScheduler()


@pytest.mark.parametrize(
    ("scheduler", "predicts"),
    [
        (FLOW, "velocity"), (FlowMatchHeunDiscreteScheduler(), "velocity"), (FlowMatchLCMScheduler(), "velocity"),
        *[
            (kind(prediction_type=predicts), predicts)
            for kind in (
                DDIMScheduler, DDPMScheduler, LCMScheduler, EulerDiscreteScheduler, EulerAncestralDiscreteScheduler,
                DPMSolverMultistepScheduler, UniPCMultistepScheduler,
            )
            for predicts in ("epsilon", "v_prediction")
        ],
        (DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True), "velocity"),
        (EDMEulerScheduler(), "raw"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_what_is_predicted_at_any_step_gives_x0(scheduler: Any, predicts: str) -> None:
    """Also at the first of four, of samplers that add noise, and of those that scale their latents."""
    x0, noise = torch.randn(2, 1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    scheduler.set_timesteps(4)
    for timestep in scheduler.timesteps[[0, 2]]:
        sample, output = noised(scheduler, predicts, timestep, x0, noise)
        found = predict_x0(scheduler, timestep, output, sample)
        assert found is not None
        assert torch.allclose(found, x0, atol=2e-3 if predicts == "raw" else 1e-3)


def noised(
    scheduler: Any, predicts: str, timestep: torch.Tensor, x0: torch.Tensor, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A step's latents, and what a denoiser that knows the image predicts of them."""
    if isinstance(scheduler, FlowMatchEulerDiscreteScheduler | FlowMatchHeunDiscreteScheduler | FlowMatchLCMScheduler):
        sigma = scheduler.sigmas[scheduler.timesteps.tolist().index(float(timestep))]
        return (1 - sigma) * x0 + sigma * noise, noise - x0
    sample = scheduler.add_noise(x0, noise, timestep[None])
    if predicts == "velocity":
        return sample, noise - x0
    if predicts == "epsilon":
        return sample, noise
    if predicts == "raw":
        sigma = scheduler.sigmas[scheduler.timesteps.tolist().index(float(timestep))]
        at = 0.5**2 + sigma**2  # sigma_data is one half
        return sample, (x0 - 0.5**2 / at * sample) * at.sqrt() / (sigma * 0.5)
    clean = scheduler.alphas_cumprod[int(timestep)].sqrt()
    return sample, clean * noise - (1 - clean**2).sqrt() * x0


def test_what_is_unknown_is_not_shown() -> None:
    FLOW.set_timesteps(4)
    at, latents = FLOW.timesteps[0], torch.zeros(1, 4, 8, 8)
    assert predict_x0(FLOW, at + 0.5, latents, latents) is None
    assert predict_x0(FLOW, at, torch.zeros(1, 8, 8, 8), latents) is None
    assert predict_x0(SCMScheduler(), 1.0, latents, latents) is None
