"""The initial weights of starter-beta's decoder: smooth upsampling of patch means, with norms that do nothing.

A norm over a whole image differs from one over the crops that a decoder is trained on. So two channels hold large
constants: they dominate every norm, which then always divides by the same number and returns its input. Three channels
of the residual stream are the colours; the others start at random, with no effect on the output yet.
"""

import math
from typing import Any, Final

import torch
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.upsampling import Upsample2D
from torch import Tensor, nn

CONSTANT: Final = 30.0
COLOURS: Final = range(3)  # channels; in the last block the next three are the same, negated
LINEAR_KERNEL: Final = (0.25, 0.5, 0.25)  # after nearest-neighbour doubling: linear interpolation


@torch.no_grad()
def init_upsampling_decoder(decoder: nn.Module, means: Tensor) -> None:
    """For a decoder whose norms have one group. `means` is what each latent adds to the colours, (latents, 3)."""
    for module in decoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        if isinstance(module, nn.GroupNorm):
            module.weight.fill_(CONSTANT * math.sqrt(2 / module.num_channels))
            module.weight[-2:] = 0  # the constants serve the norms alone
    conv_in: Any = decoder.conv_in
    _isolate(conv_in)
    conv_in.weight[: len(COLOURS), :, 1, 1] = means.T
    _set_constants(conv_in)
    for module in decoder.modules():
        if isinstance(module, ResnetBlock2D):
            _set_identity(module)
        if isinstance(module, Upsample2D):
            _pass_through(module.conv, torch.outer(torch.tensor(LINEAR_KERNEL), torch.tensor(LINEAR_KERNEL)))
    _init_output(decoder)


def _set_identity(resnet: Any) -> None:
    """Make a residual block the identity."""
    nn.init.kaiming_normal_(resnet.conv1.weight, nonlinearity="relu")
    resnet.conv1.weight[-2:] = 0
    _set_constants(resnet.conv1)
    resnet.conv2.weight.zero_()
    if resnet.conv_shortcut is not None:
        _pass_through(resnet.conv_shortcut, torch.ones(1, 1))


def _pass_through(convolution: Any, colours: Tensor) -> None:
    """Colours pass through this kernel, constants unchanged."""
    _isolate(convolution)
    centre = colours.shape[0] // 2
    for colour in COLOURS:
        convolution.weight[colour, colour] = colours
    for constant in (-2, -1):
        convolution.weight[constant, constant, centre, centre] = 1


def _init_output(decoder: Any) -> None:
    """Each colour with either sign: silu(x) - silu(-x) is x."""
    shortcut = decoder.up_blocks[-1].resnets[0].conv_shortcut
    decoder.conv_out.weight.zero_()
    for colour in COLOURS:
        other = len(COLOURS) + colour
        shortcut.weight[other] = 0
        shortcut.weight[other, colour] = -1
        decoder.conv_out.weight[colour, colour, 1, 1] = 1
        decoder.conv_out.weight[colour, other, 1, 1] = -1


def _isolate(convolution: Any) -> None:
    """Separate the colour and constant channels from the random ones."""
    convolution.weight[: len(COLOURS)], convolution.weight[-2:] = 0, 0
    if convolution.in_channels == convolution.out_channels or convolution.kernel_size == (1, 1):
        convolution.weight[:, -2:] = 0


def _set_constants(convolution: Any) -> None:
    convolution.bias[-2], convolution.bias[-1] = CONSTANT, -CONSTANT
