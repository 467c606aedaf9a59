"""A start for starter-beta's decoder: it enlarges what patches are on average, smoothly, and its norms do nothing.

A norm over a whole picture says something else of each cutting that a decoder is trained on. Two channels hold large
constants here, next to which nothing else matters to a norm: it always divides by the same, and gives back what came
in. Three channels of the residual stream are the colours; the others begin at random, and nothing hears them yet.
"""

import math
from typing import Any, Final

import torch
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.upsampling import Upsample2D
from torch import Tensor, nn

CONSTANT: Final = 30.0
COLOURS: Final = range(3)  # the channels that are colours; next to them, where it ends, the same with the other sign
SMOOTH: Final = (0.25, 0.5, 0.25)  # after each pixel was doubled: linear interpolation


@torch.no_grad()
def set_to_enlarge(decoder: nn.Module, means: Tensor) -> None:
    """Set a decoder whose norms have one group. `means` is what each latent adds to the colours, (latents, 3)."""
    for module in decoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        if isinstance(module, nn.GroupNorm):
            module.weight.fill_(CONSTANT * math.sqrt(2 / module.num_channels))
            module.weight[-2:] = 0  # the constants are for norms alone
    enter: Any = decoder.conv_in
    _clear(enter)
    enter.weight[: len(COLOURS), :, 1, 1] = means.T
    _hold_constants(enter)
    for module in decoder.modules():
        if isinstance(module, ResnetBlock2D):
            _pass(module)
        if isinstance(module, Upsample2D):
            _pass_on(module.conv, torch.outer(torch.tensor(SMOOTH), torch.tensor(SMOOTH)))
    _leave(decoder)


def _pass(resnet: Any) -> None:
    """What comes in goes out."""
    nn.init.kaiming_normal_(resnet.conv1.weight, nonlinearity="relu")
    resnet.conv1.weight[-2:] = 0
    _hold_constants(resnet.conv1)
    resnet.conv2.weight.zero_()
    if resnet.conv_shortcut is not None:
        _pass_on(resnet.conv_shortcut, torch.ones(1, 1))


def _pass_on(convolution: Any, colours: Tensor) -> None:
    """Colours pass by this kernel, constants by themselves."""
    _clear(convolution)
    centre = colours.shape[0] // 2
    for colour in COLOURS:
        convolution.weight[colour, colour] = colours
    for constant in (-2, -1):
        convolution.weight[constant, constant, centre, centre] = 1


def _leave(decoder: Any) -> None:
    """Each colour with either sign, since silu(x) - silu(-x) is x."""
    shortcut = decoder.up_blocks[-1].resnets[0].conv_shortcut
    decoder.conv_out.weight.zero_()
    for colour in COLOURS:
        other = len(COLOURS) + colour
        shortcut.weight[other] = 0
        shortcut.weight[other, colour] = -1
        decoder.conv_out.weight[colour, colour, 1, 1] = 1
        decoder.conv_out.weight[colour, other, 1, 1] = -1


def _clear(convolution: Any) -> None:
    """Nothing random makes colours or constants, and constants make nothing random."""
    convolution.weight[: len(COLOURS)], convolution.weight[-2:] = 0, 0
    if convolution.in_channels == convolution.out_channels or convolution.kernel_size == (1, 1):
        convolution.weight[:, -2:] = 0


def _hold_constants(convolution: Any) -> None:
    convolution.bias[-2], convolution.bias[-1] = CONSTANT, -CONSTANT
