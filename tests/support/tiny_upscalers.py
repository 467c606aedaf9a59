"""Tiny upscalers, with seeded random weights, in every layout in which they are published.

`First` is built as ESRGAN's first code was, so that its names are that code's own. Its weights nearly keep an image:
what comes out looks like what went in.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

FEATURES, GROWTH = 8, 4
Weights = Mapping[str, torch.Tensor]


def _convolution(inputs: int, outputs: int, *, acts: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=1)]
    return nn.Sequential(*layers, *([nn.LeakyReLU(0.2)] if acts else []))


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = _convolution(FEATURES, GROWTH)
        self.conv2 = _convolution(FEATURES + GROWTH, GROWTH)
        self.conv3 = _convolution(FEATURES + 2 * GROWTH, GROWTH)
        self.conv4 = _convolution(FEATURES + 3 * GROWTH, GROWTH)
        self.conv5 = _convolution(FEATURES + 4 * GROWTH, FEATURES, acts=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x1 = self.conv1(x)
        x2 = self.conv2(torch.cat((x, x1), 1))
        x3 = self.conv3(torch.cat((x, x1, x2), 1))
        x4 = self.conv4(torch.cat((x, x1, x2, x3), 1))
        x5: torch.Tensor = self.conv5(torch.cat((x, x1, x2, x3, x4), 1))
        return x5 * 0.2 + x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.RDB1, self.RDB2, self.RDB3 = Dense(), Dense(), Dense()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.RDB3(self.RDB2(self.RDB1(x))) * 0.2 + x  # type: ignore[no-any-return]


class Shortcut(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.sub = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.sub(x)  # type: ignore[no-any-return]


class First(nn.Module):
    """`model.0`, `model.1.sub`, then `model.3`, `model.6`, ...: places without weights count too."""

    def __init__(self, doublings: int, blocks: int = 2, inputs: int = 3) -> None:
        super().__init__()
        body = nn.Sequential(*(Block() for _ in range(blocks)), nn.Conv2d(FEATURES, FEATURES, 3, padding=1))
        ups: list[nn.Module] = []
        for _ in range(doublings):
            ups += [nn.Upsample(scale_factor=2), nn.Conv2d(FEATURES, FEATURES, 3, padding=1), nn.LeakyReLU(0.2)]
        last = [nn.Conv2d(FEATURES, FEATURES, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(FEATURES, 3, 3, padding=1)]
        self.model = nn.Sequential(nn.Conv2d(inputs, FEATURES, 3, padding=1), Shortcut(body), *ups, *last)
        generator = torch.Generator().manual_seed(7)
        for name, weight in self.named_parameters():
            weight.data.normal_(std=0.1 if "RDB" in name else 0.004, generator=generator)
        for convolution in (each for each in self.model if isinstance(each, nn.Conv2d)):
            for channel in range(min(3, convolution.in_channels)):  # colours go through
                convolution.weight.data[channel, channel, 1, 1] += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)  # type: ignore[no-any-return]


def weights_of(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.contiguous() for name, weight in network.state_dict().items()}


def later_names(weights: Weights) -> dict[str, torch.Tensor]:
    """As ESRGAN's later code calls them: RRDB_trunk, trunk_conv, upconv1, HRconv."""
    return {_later(name, weights): weight for name, weight in weights.items()}


def real_names(weights: Weights) -> dict[str, torch.Tensor]:
    """As Real-ESRGAN calls them: body, conv_body, conv_up1, conv_hr."""
    pairs = (("RRDB_trunk.", "body."), ("RDB", "rdb"), ("trunk_conv", "conv_body"), ("upconv", "conv_up"))
    renamed = later_names(weights)
    for old, new in (*pairs, ("HRconv", "conv_hr")):
        renamed = {name.replace(old, new): weight for name, weight in renamed.items()}
    return renamed


def _later(name: str, weights: Weights) -> str:
    places = sorted({int(each.split(".")[1]) for each in weights} - {0, 1})
    steps = name.split(".")
    if name.startswith("model.0."):
        return f"conv_first.{steps[-1]}"
    if name.startswith("model.1.sub."):
        inner = f"RRDB_trunk.{steps[3]}.{steps[4]}.{steps[5]}" if len(steps) > 5 else "trunk_conv"
        return f"{inner}.{steps[-1]}"
    index = places.index(int(steps[1]))
    last = {len(places) - 1: "conv_last", len(places) - 2: "HRconv"}
    return f"{last.get(index, f'upconv{index + 1}')}.{steps[-1]}"


def compact(scale: int) -> dict[str, torch.Tensor]:
    """Real-ESRGAN's small network."""
    row = [nn.Conv2d(3, FEATURES, 3, padding=1), nn.PReLU(FEATURES), nn.Conv2d(FEATURES, FEATURES, 3, padding=1)]
    network = nn.Sequential(*row, nn.PReLU(FEATURES), nn.Conv2d(FEATURES, 3 * scale**2, 3, padding=1))
    generator = torch.Generator().manual_seed(7)
    for weight in network.parameters():
        weight.data.normal_(std=0.05, generator=generator)
    return {f"body.{name}": weight for name, weight in weights_of(network).items()}


def make_upscaler(file: Path, doublings: int = 2) -> Path:
    """Write an upscaler in the names of ESRGAN's first code."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights_of(First(doublings)), file)
    return file
