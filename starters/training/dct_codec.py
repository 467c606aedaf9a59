"""starter-beta's latents: a discrete cosine transform (DCT) with 32 coefficients for 32 by 32 pixels.

As in starter-alpha (average_codec.py), the encoder is not trained: its convolutions are set. The image is reduced to
cells of 8 pixels. Each latent is the DCT of 4 by 4 cells: all 16 coefficients of lightness and the 8 lowest of each of
two colour axes, as in JPEG. Upsampled smoothly, they alone give a rendered scene back with 30 dB.
"""

import math
from functools import cache
from typing import Any, Final

import torch
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline
from PIL import Image
from torch import Tensor, nn

from starters.training.dataset import size_of, train_scene
from starters.training.decoders import as_pixels
from starters.training.upsampling import init_upsampling_decoder
from starters.world.render import render
from starters.world.scene import Scene

REDUCTION: Final = 8  # pixels of the image for a cell
CELLS: Final = 4  # along a latent's side
COLOURS: Final = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (-0.5, 1.0, -0.5))  # lightness, red to blue, green to purple
COEFFICIENTS: Final = (16, 8, 8)  # DCT coefficients of each
STATISTICS_SCENES: Final = 128  # scenes over which the latents' mean and variance are measured
CONSTANT: Final = 100.0  # two such channels make the last norm divide by nearly the same number always


@cache
def basis() -> Tensor:
    """The orthonormal DCT basis: the weights of each latent channel, (32, 3, 4, 4)."""
    frequency, cell = torch.arange(CELLS)[:, None], torch.arange(CELLS)[None]
    waves = math.sqrt(2 / CELLS) * torch.cos(math.pi * (cell + 0.5) * frequency / CELLS)
    waves[0] /= math.sqrt(2)
    order = sorted(((k, m) for k in range(CELLS) for m in range(CELLS)), key=lambda at: (sum(at), max(at), at))
    colours = nn.functional.normalize(torch.tensor(COLOURS), dim=1)
    return torch.stack(
        [
            colour[:, None, None] * waves[k][:, None] * waves[m][None]
            for colour, count in zip(colours, COEFFICIENTS, strict=True)
            for k, m in order[:count]
        ]
    )


def latents_of(scene: Scene, width_px: int, height_px: int) -> Tensor:
    """The codec's latents of the scene at this size, (32, h, w)."""
    return dct_latents(render(scene, width_px // REDUCTION, height_px // REDUCTION))


def dct_latents(reduced: Image.Image) -> Tensor:
    """The latents of an image that was reduced by REDUCTION."""
    return nn.functional.conv2d(as_pixels(reduced)[None], basis(), stride=CELLS)[0]


@torch.no_grad()
def init_dct_codec(codec: AutoencoderKLFlux2) -> AutoencoderKLFlux2:
    """Set the encoder and the latent statistics for good, and start the decoder as smooth upsampling."""
    encoder = codec.encoder
    for module in (*encoder.modules(), codec.quant_conv):
        if isinstance(module, nn.Conv2d):
            module.weight.zero_()
            module.bias.zero_()  # type: ignore[union-attr]
    for colour in range(3):
        encoder.conv_in.weight[colour, colour, 1, 1] = 1
    *_, splitting, transforming, last = encoder.down_blocks
    for block in encoder.down_blocks[:-3]:  # to cells
        for colour in range(3):
            block.downsamplers[0].conv.weight[colour, colour, :2, :2] = 0.25
    for colour in range(3):  # two by two cells become channels
        splitting.resnets[0].conv_shortcut.weight[colour, colour] = 1
        for place in range(4):
            splitting.downsamplers[0].conv.weight[4 * colour + place, colour, place // 2, place % 2] = 1
    for channel in range(12):
        transforming.resnets[0].conv_shortcut.weight[channel, channel] = 1
    weights = basis().view(-1, 3, 2, 2, 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(-1, 12, 2, 2)  # cells, then their place
    transforming.downsamplers[0].conv.weight[: len(weights), :12, :2, :2] = weights
    _bypass_last_norm(encoder, last.resnets[0].conv_shortcut, len(weights))
    for channel in range(2 * len(weights)):
        codec.quant_conv.weight[channel, channel] = 1
    mean, variance = _statistics()
    codec.bn.running_mean.copy_(mean.repeat_interleave(codec.bn.num_features // len(mean)))
    codec.bn.running_var.fill_(variance)
    codec.post_quant_conv.weight.copy_(torch.eye(len(weights))[:, :, None, None])
    codec.post_quant_conv.bias.zero_()
    init_upsampling_decoder(codec.decoder, basis().mean((2, 3)))
    return codec


def _bypass_last_norm(encoder: Any, downscale: nn.Conv2d, count: int) -> None:
    """Each coefficient twice, with either sign: silu(x) - silu(-x) is x. Two constants decide the norm."""
    gain = CONSTANT * math.sqrt(2 / downscale.out_channels)
    for number in range(count):
        plus = 2 * number
        downscale.weight[plus, number], downscale.weight[plus + 1, number] = 1, -1
        encoder.conv_out.weight[number, plus, 1, 1] = gain
        encoder.conv_out.weight[number, plus + 1, 1, 1] = -gain
    bias: Any = downscale.bias
    bias[-2], bias[-1] = CONSTANT, -CONSTANT


@cache
def _statistics() -> tuple[Tensor, Tensor]:
    """Each latent's mean, (32,), and the variance that all are divided by: that of a patch's lightness.

    With one variance for all, noise on latents is as even as noise on cells. With a variance for each coefficient, the
    rest of the noise was visible in every sky.
    """
    scenes = [
        latents_of(train_scene(number), *size_of("full", number)).flatten(1) for number in range(STATISTICS_SCENES)
    ]
    latents = torch.cat(scenes, dim=1)
    return latents.mean(1), latents[0].var()


def tokens_of(latents: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """Latents (n, c, h, w) as the transformer's tokens, (n, 4c, h/2, w/2)."""
    patches: Tensor = Flux2KleinPipeline._patchify_latents(latents)
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise ValueError("the codec has no latent statistics")
    return (patches - mean[:, None, None]) / torch.sqrt(variance + norm.eps)[:, None, None]
