"""starter-alpha's latents: the mean colour of each patch of 16 pixels, and how much lighter its upper half is.

The encoder is not trained: its convolutions are set to compute means. So latents can be made from small renderings, and
a generator can be trained before the codec. The decoder is trained, and finds edges where the means change.
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

REDUCTION: Final = 8  # pixels of the image for one of the small rendering; two by two of these make a latent
CONTRAST: Final = 2.0  # of the fourth channel


def latents_of(scene: Scene, width_px: int, height_px: int) -> Tensor:
    """The scaled latents of the scene at this size, (4, h, w)."""
    return average_latents(render(scene, width_px // REDUCTION, height_px // REDUCTION))


def average_latents(reduced: Image.Image) -> Tensor:
    """The latents of an image that was reduced by REDUCTION."""
    pixels = torch.from_numpy(np.array(reduced)).permute(2, 0, 1).float().div(255)
    rows = pixels.reshape(3, reduced.height // 2, 2, reduced.width // 2, 2).mean(4)  # (3, h, 2, w)
    contrast = CONTRAST * (rows[:, :, 0] - rows[:, :, 1]).mean(0, keepdim=True)
    return LATENT_SCALE * torch.cat([rows.mean(2) - 0.5, contrast])


@torch.no_grad()
def init_average_codec(codec: AutoencoderTiny) -> AutoencoderTiny:
    """Set the encoder for good, and start the decoder as smooth upsampling."""
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
    _init_upsampling(codec.decoder)
    return codec


def _init_upsampling(decoder: nn.Module) -> None:
    """Three channels pass through all convolutions; the others start at random, with no effect on the output yet."""
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
