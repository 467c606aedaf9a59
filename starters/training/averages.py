"""starter-alpha's latents: what a patch of 16 pixels is on average, and how much lighter its upper half is.

The encoder isn't learned: its convolutions are set to take averages. So latents can be made from small renderings, with
no codec before there is a generator to train; and the decoder, which is learned, finds edges where averages change.
"""

from typing import Final

import numpy as np
import torch
from diffusers import AutoencoderTiny
from PIL import Image
from torch import Tensor, nn

from starters.architectures import LATENT_SCALE
from starters.world.render import render
from starters.world.scene import Scene

DRAWN_PX: Final = 8  # of the picture for a pixel of the small rendering: two by two of them make a latent
CONTRAST: Final = 2.0  # of the fourth channel


def latents_of(scene: Scene, width_px: int, height_px: int) -> Tensor:
    """The latents of the scene at this size, as the UNet takes them, (4, h, w)."""
    return averages_of(render(scene, width_px // DRAWN_PX, height_px // DRAWN_PX))


def averages_of(reduced: Image.Image) -> Tensor:
    """The latents of a picture that is given reduced by DRAWN_PX."""
    pixels = torch.from_numpy(np.array(reduced)).permute(2, 0, 1).float().div(255)
    rows = pixels.reshape(3, reduced.height // 2, 2, reduced.width // 2, 2).mean(4)  # (3, h, 2, w)
    contrast = CONTRAST * (rows[:, :, 0] - rows[:, :, 1]).mean(0, keepdim=True)
    return LATENT_SCALE * torch.cat([rows.mean(2) - 0.5, contrast])


@torch.no_grad()
def set_to_averages(codec: AutoencoderTiny) -> AutoencoderTiny:
    """The encoder as it stays, and a decoder that begins by enlarging smoothly."""
    encoder = [module for module in codec.encoder.layers if isinstance(module, nn.Conv2d)]
    for convolution in encoder:
        convolution.weight.zero_()
        if convolution.bias is not None:
            convolution.bias.zero_()
    first, *halving, last = encoder
    for colour in range(3):
        first.weight[colour, colour, 1, 1] = 1
        for convolution in halving:
            convolution.weight[colour, colour, 1:, 1:] = 0.25  # the padding is one row too many, at the far sides
        halving[-1].weight[3, colour, 1, 1:] = CONTRAST / 6
        halving[-1].weight[3, colour, 2, 1:] = -CONTRAST / 6
        last.bias[colour] = -0.5  # type: ignore[index]
    for channel in range(4):
        last.weight[channel, channel, 1, 1] = 1
    _set_to_enlarge(codec.decoder)
    return codec


def _set_to_enlarge(decoder: nn.Module) -> None:
    """Three channels pass through all convolutions; the others start at random, and nothing hears them yet."""
    for module in decoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                module.bias.zero_()
    for block in decoder.layers:  # type: ignore[union-attr]
        if hasattr(block, "conv"):
            block.conv[-1].weight.zero_()
        elif isinstance(block, nn.Conv2d):
            block.weight[:3].zero_()
            for colour in range(3):
                block.weight[colour, colour, 1, 1] = 1
    decoder.layers[0].bias[:3] = 0.5  # type: ignore[index,union-attr]
