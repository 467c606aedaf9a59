"""starter-beta's latents: what a picture reduced to cells of 8 pixels says in cosines, 32 numbers for 32 pixels square.

As in starter-alpha (averages.py), the encoder isn't learned: its convolutions are set. Each latent is the discrete
cosine transform of 4 by 4 cells, all 16 numbers of their lightness and the 8 lowest of each of two colours, as JPEG
would keep them. Resized smoothly they alone give a rendered scene back with 30 dB.
"""

import math
from functools import cache
from typing import Any, Final

import torch
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline
from PIL import Image
from torch import Tensor, nn

from starters.training.codecs import as_pixels
from starters.training.enlarging import set_to_enlarge
from starters.training.pictures import size_of, train_scene
from starters.world.render import render
from starters.world.scene import Scene

DRAWN_PX: Final = 8  # of the picture for a cell
CELLS: Final = 4  # along a latent's side
COLOURS: Final = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (-0.5, 1.0, -0.5))  # lightness, red to blue, green to purple
KEPT: Final = (16, 8, 8)  # cosines of each
MEASURED: Final = 128  # scenes whose latents decide what mean 0 is, and for lightness variance 1
CONSTANT: Final = 100.0  # of the channels that make the last norm divide by nearly the same number always


@cache
def basis() -> Tensor:
    """What each latent channel weighs the cells by, (32, 3, 4, 4), orthonormal."""
    frequency, cell = torch.arange(CELLS)[:, None], torch.arange(CELLS)[None]
    waves = math.sqrt(2 / CELLS) * torch.cos(math.pi * (cell + 0.5) * frequency / CELLS)
    waves[0] /= math.sqrt(2)
    order = sorted(((k, m) for k in range(CELLS) for m in range(CELLS)), key=lambda at: (sum(at), max(at), at))
    colours = nn.functional.normalize(torch.tensor(COLOURS), dim=1)
    return torch.stack(
        [
            colour[:, None, None] * waves[k][:, None] * waves[m][None]
            for colour, kept in zip(colours, KEPT, strict=True)
            for k, m in order[:kept]
        ]
    )


def latents_of(scene: Scene, width_px: int, height_px: int) -> Tensor:
    """The codec's latents of the scene at this size, (32, h, w)."""
    return cosines_of(render(scene, width_px // DRAWN_PX, height_px // DRAWN_PX))


def cosines_of(reduced: Image.Image) -> Tensor:
    """The latents of a picture that is given reduced by DRAWN_PX."""
    return nn.functional.conv2d(as_pixels(reduced)[None], basis(), stride=CELLS)[0]


@torch.no_grad()
def set_to_cosines(codec: AutoencoderKLFlux2) -> AutoencoderKLFlux2:
    """The encoder as it stays, the statistics that the pipeline normalises its latents by, and the decoder's start."""
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
    _past_the_last_norm(encoder, last.resnets[0].conv_shortcut, len(weights))
    for channel in range(2 * len(weights)):
        codec.quant_conv.weight[channel, channel] = 1
    mean, variance = _statistics()
    codec.bn.running_mean.copy_(mean.repeat_interleave(codec.bn.num_features // len(mean)))
    codec.bn.running_var.fill_(variance)
    codec.post_quant_conv.weight.copy_(torch.eye(len(weights))[:, :, None, None])
    codec.post_quant_conv.bias.zero_()
    set_to_enlarge(codec.decoder, basis().mean((2, 3)))
    return codec


def _past_the_last_norm(encoder: Any, spread: nn.Conv2d, count: int) -> None:
    """Each number twice, with either sign: silu(x) - silu(-x) is x. Two constants decide the norm."""
    gain = CONSTANT * math.sqrt(2 / spread.out_channels)
    for number in range(count):
        plus = 2 * number
        spread.weight[plus, number], spread.weight[plus + 1, number] = 1, -1
        encoder.conv_out.weight[number, plus, 1, 1] = gain
        encoder.conv_out.weight[number, plus + 1, 1, 1] = -gain
    bias: Any = spread.bias
    bias[-2], bias[-1] = CONSTANT, -CONSTANT


@cache
def _statistics() -> tuple[Tensor, Tensor]:
    """Each latent's mean, (32,), and the variance that is called 1: that of a patch's lightness.

    All are divided by the same, so that noise on latents is as even as noise on cells, and an error counts as it shows:
    with finer waves made as large as the rest, what is left of the noise was seen in every sky.
    """
    scenes = [latents_of(train_scene(number), *size_of("full", number)).flatten(1) for number in range(MEASURED)]
    latents = torch.cat(scenes, dim=1)
    return latents.mean(1), latents[0].var()


def tokens_of(latents: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """Latents (n, c, h, w) as the transformer takes them, (n, 4c, h/2, w/2)."""
    patches: Tensor = Flux2KleinPipeline._patchify_latents(latents)
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise ValueError("the codec keeps no statistics")
    return (patches - mean[:, None, None]) / torch.sqrt(variance + norm.eps)[:, None, None]
