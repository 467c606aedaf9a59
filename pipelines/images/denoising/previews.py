"""Previews from the latents of a running step, by a linear map instead of a network.

The map from a latent to the colours of its patch is fitted to the images that the checkpoint has drawn: each one
gives some thousand pairs of a last latent and the pixels decoded from it. So it needs no knowledge of the codec, or of
how a pipeline packs and normalises its latents.

The latents of a running step are mostly noise. What is shown is x0, the image as the denoiser predicts it at that step:
where the latents are a * x0 + s * noise with known a and s, what it predicts (the noise, a velocity) gives x0. So the
first of four steps shows the image, and noise that a sampler adds is not seen.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

PATCH_PX = 8  # image pixels along a side of one preview pixel
RIDGE = 1e-3  # of the mean variance: regularises directions of which there are no samples yet
DECAY = 0.8  # of older samples with each new image: the codec is fixed, the content changes
USUAL_SCALE = 4.0  # root of the mean square of latents, which most codecs scale to about 1
LONG_SIDE_PX = 512
LARGEST_KEPT = 1.001  # first noise of schedulers that keep the variance; others begin with their largest sigma
MAX_SHAPE = 0.06  # by which the shape of a grid may differ from an image's


class PreviewMap:
    """The fitted map of one checkpoint. Latents are (channels, h, w), or (h * w, channels) from a transformer."""

    def __init__(self) -> None:
        self._products: torch.Tensor | None = None  # X^T X of the least squares, with a constant column
        self._targets: torch.Tensor | None = None  # X^T Y, Y being the colours
        self._channels = 3  # of the colours, four with alpha

    def update(self, latents: torch.Tensor, pixels: NDArray[np.uint8]) -> None:
        """Add an image's last latents and its decoded pixels of shape (height, width, channels), of which there are
        three, or four with alpha.

        Latents that are not finite are left out, and those above the usual scale count as much less as their squares
        are larger: one odd image would outweigh all others for long.
        """
        height, width, channels = pixels.shape
        grid = _tokens(latents, height, width)
        if grid is None or not grid[2].isfinite().all():
            return
        rows, columns, tokens = grid
        patch = max(1, round(height / rows / PATCH_PX))  # preview pixels along a side of the area of one latent
        small = Image.fromarray(pixels).resize((columns * patch, rows * patch), Image.Resampling.BOX)
        colours = torch.from_numpy(np.asarray(small).copy()).float().div(255)
        colours = colours.view(rows, patch, columns, patch, channels).permute(0, 2, 1, 3, 4).reshape(rows * columns, -1)
        scale = max(1.0, float(tokens.double().square().mean().sqrt()) / USUAL_SCALE)
        inputs = _with_constant(tokens) / scale
        products, targets = inputs.T @ inputs, inputs.T @ colours / scale
        if self._products is None or self._targets is None or self._targets.shape != targets.shape:
            self._products, self._targets, self._channels = products, targets, channels
        else:
            self._products = DECAY * self._products + products
            self._targets = DECAY * self._targets + targets

    def render(self, latents: torch.Tensor, width: int, height: int) -> NDArray[np.uint8] | None:
        """Return the preview of an image of width x height pixels, 512 pixels on its long side, with the channels of
        the images that were drawn; None before an update, and for latents that are not finite."""
        grid = _tokens(latents, height, width)
        if grid is None or not grid[2].isfinite().all() or self._products is None or self._targets is None:
            return None
        rows, columns, tokens = grid
        channels, size = self._channels, self._products.shape[0]
        patch = math.isqrt(self._targets.shape[1] // channels)
        if tokens.shape[1] + 1 != size:
            return None
        ridge = RIDGE * self._products.diagonal().mean() * torch.eye(size)
        weights = torch.linalg.solve(self._products + ridge, self._targets)
        colours = (_with_constant(tokens) @ weights).view(rows, columns, patch, patch, channels).permute(0, 2, 1, 3, 4)
        small = colours.reshape(rows * patch, columns * patch, channels).clamp(0, 1).mul(255).round().byte().numpy()
        scale = min(1.0, LONG_SIDE_PX / max(width, height))
        size_px = (max(1, round(width * scale)), max(1, round(height * scale)))
        return np.asarray(Image.fromarray(small).resize(size_px, Image.Resampling.BICUBIC))


def predict_x0(scheduler: Any, timestep: Any, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor | None:
    """Return x0, of the shape of `sample`, from what the denoiser has predicted of it at a timestep; None for
    schedulers whose noise or whose prediction is unknown. Reads the schedule from the device.

    Flow matching interpolates, a = 1 - sigma and s = sigma, and predicts noise - x0 (Lipman et al., arXiv 2210.02747).
    DDIM keeps the variance, a^2 + s^2 = 1 (Song et al., arXiv 2010.02502, equation 12), and predicts the noise, x0 or
    a * noise - s * x0 (Salimans and Ho, arXiv 2202.00512). The others of these have sigmas, s / a: they scale the
    latents by 1 / a (Karras et al., arXiv 2206.00364), or don't.
    """
    config = scheduler.config
    kind, sigmas = config.get("prediction_type", "epsilon"), getattr(scheduler, "sigmas", None)
    has_alphas = getattr(scheduler, "alphas_cumprod", None) is not None
    index = _index_of(scheduler, timestep)
    if index is None or output.shape != sample.shape or (sigmas is None and not has_alphas):
        return None
    sigma = float(sigmas[index]) if sigmas is not None else 0.0
    if "sigma_data" in config:
        x0: torch.Tensor = scheduler.precondition_outputs(sample, output, sigma)
        return x0
    if not has_alphas or kind == "flow_prediction" or config.get("use_flow_sigmas"):
        return sample - sigma * output
    if sigmas is None:
        clean = math.sqrt(float(scheduler.alphas_cumprod[int(timestep)]))
    else:
        clean = 1 / math.sqrt(1 + sigma**2)
        if float(scheduler.init_noise_sigma) > LARGEST_KEPT:
            sample = clean * sample
    noise = math.sqrt(1 - clean**2)
    if kind == "epsilon":
        return (sample - noise * output) / clean
    if kind == "v_prediction":
        return clean * sample - noise * output
    return output if kind == "sample" else None


def _index_of(scheduler: Any, timestep: Any) -> int | None:
    """Return the place of a timestep in the schedule; None for one that is not in it, or of several."""
    timesteps = torch.as_tensor(scheduler.timesteps)
    if timesteps.dim() != 1 or torch.as_tensor(timestep).numel() != 1:
        return None
    found = (timesteps == torch.as_tensor(timestep).to(timesteps.device)).nonzero()
    return int(found[0]) if len(found) else None


def _tokens(latents: torch.Tensor, height: int, width: int) -> tuple[int, int, torch.Tensor] | None:
    """Return rows, columns and latents of shape (rows * columns, channels); None if they are not a grid. Some classes
    draw another size than was asked for, of nearly that shape."""
    flat = latents.detach().float().cpu()
    if flat.dim() == 5:  # of a row of images, references first
        flat = flat[-1]
    if flat.dim() == 4 and flat.shape[1] == 1:  # of the one frame of a video
        flat = flat[:, 0]
    elif flat.dim() == 4 and flat.shape[0] == 1:  # of one frame, with the channels last
        flat = flat[0].permute(2, 0, 1)
    if flat.dim() == 3:
        channels, rows, columns = flat.shape
        return rows, columns, flat.reshape(channels, -1).T
    if flat.dim() != 2:
        return None
    count = flat.shape[0]
    exact = math.sqrt(count * height / width)
    near = range(math.floor(exact * (1 - MAX_SHAPE)), math.ceil(exact * (1 + MAX_SHAPE)) + 1)
    fitting = [rows for rows in near if rows and count % rows == 0]
    rows = min(fitting, key=lambda each: abs(each - exact), default=0)
    return (rows, count // rows, flat) if rows else None


def _with_constant(tokens: torch.Tensor) -> torch.Tensor:
    return torch.cat([tokens, torch.ones(len(tokens), 1)], dim=1)
