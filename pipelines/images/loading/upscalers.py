"""Upscalers: networks that enlarge an image in one forward pass, loaded from one .safetensors file.

Source: ESRGAN (Wang et al. 2018), Real-ESRGAN (Wang et al. 2021). No library among the dependencies has them.
"""

import torch
from torch import nn
from torch.nn import functional

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.folder.files import CheckpointFiles
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.upscalers import COLOURS, UpscalerLayout
from pipelines.device.memory import compute_dtype, copy_mapped_weights
from pipelines.device.staged_copy import move_modules
from pipelines.device.weight_names import check_names
from pipelines.images.denoising.merging import ForwardMerger, Sharing
from pipelines.images.loading.checkpoint import Checkpoint, identity_of
from pipelines.images.loading.single_files import load_unscaled
from pipelines.protocol.images import CheckpointSpec

SLOPE = 0.2  # of the leaky rectifier
RESIDUAL = 0.2  # of a block's output, which is added to its input


class _DenseBlock(nn.Module):
    """Five convolutions, each of which sees the outputs of all before it."""

    def __init__(self, features: int, growth: int) -> None:
        super().__init__()
        self.conv1 = _convolution(features, growth)
        self.conv2 = _convolution(features + growth, growth)
        self.conv3 = _convolution(features + 2 * growth, growth)
        self.conv4 = _convolution(features + 3 * growth, growth)
        self.conv5 = _convolution(features + 4 * growth, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return an input of shape (rows, features, height, width) with the block's output added."""
        seen = x
        for convolution in (self.conv1, self.conv2, self.conv3, self.conv4):
            seen = torch.cat([seen, _leaky_relu(convolution(seen))], dim=1)
        added: torch.Tensor = self.conv5(seen)
        return x + RESIDUAL * added


class _Block(nn.Module):
    """Three dense blocks: "residual in residual"."""

    def __init__(self, features: int, growth: int) -> None:
        super().__init__()
        self.rdb1, self.rdb2, self.rdb3 = (_DenseBlock(features, growth) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return an input of shape (rows, features, height, width) with the blocks' output added."""
        added: torch.Tensor = self.rdb3(self.rdb2(self.rdb1(x)))
        return x + RESIDUAL * added


class Upscaler(nn.Module):
    """A network from colours to colours of `scale` times the sides."""

    def __init__(self, layout: UpscalerLayout) -> None:
        super().__init__()
        self.scale = layout.scale

    @property
    def dtype(self) -> torch.dtype:
        """Return the number format of the weights."""
        return next(self.parameters()).dtype


class RRDBNet(Upscaler):
    """ESRGAN's network: residual dense blocks at the image's size, then a convolution after each doubling of it."""

    def __init__(self, layout: UpscalerLayout) -> None:
        super().__init__(layout)
        features, self.unshuffle = layout.features, layout.unshuffle
        self.conv_first = _convolution(COLOURS * layout.unshuffle**2, features)
        self.body = nn.Sequential(*(_Block(features, layout.growth) for _ in range(layout.blocks)))
        self.conv_body = _convolution(features, features)
        self.ups = [f"conv_up{i + 1}" for i in range((layout.scale * layout.unshuffle).bit_length() - 1)]
        for name in self.ups:
            setattr(self, name, _convolution(features, features))
        self.conv_hr, self.conv_last = _convolution(features, features), _convolution(features, COLOURS)

    def forward(self, colours: torch.Tensor) -> torch.Tensor:
        """Return colours from 0 to 1 of shape (rows, 3, height, width), enlarged."""
        height, width = colours.shape[2:]
        padding = (0, -width % self.unshuffle, 0, -height % self.unshuffle)
        padded = functional.pad(colours, padding, "replicate") if any(padding) else colours
        x = self.conv_first(functional.pixel_unshuffle(padded, self.unshuffle))
        x = x + self.conv_body(self.body(x))
        for name in self.ups:
            x = _leaky_relu(getattr(self, name)(functional.interpolate(x, scale_factor=2, mode="nearest")))
        drawn: torch.Tensor = self.conv_last(_leaky_relu(self.conv_hr(x)))
        return drawn[:, :, : height * self.scale, : width * self.scale]


class SRVGGNetCompact(Upscaler):
    """Real-ESRGAN's small network: a row of convolutions, whose output is added to the image's own pixels."""

    def __init__(self, layout: UpscalerLayout) -> None:
        super().__init__(layout)
        features = layout.features
        row: list[nn.Module] = [_convolution(COLOURS, features), nn.PReLU(features)]
        for _ in range(layout.blocks):
            row += [_convolution(features, features), nn.PReLU(features)]
        self.body = nn.Sequential(*row, _convolution(features, COLOURS * layout.scale**2))

    def forward(self, colours: torch.Tensor) -> torch.Tensor:
        """Return colours from 0 to 1 of shape (rows, 3, height, width), enlarged."""
        added = functional.pixel_shuffle(self.body(colours), self.scale)
        return added + functional.interpolate(colours, scale_factor=self.scale, mode="nearest")


NETWORKS: dict[str, type[Upscaler]] = {"RRDBNet": RRDBNet, "SRVGGNetCompact": SRVGGNetCompact}


def load_upscaler(spec: CheckpointSpec, device: torch.device, sharing: Sharing | None) -> Checkpoint:
    """Load an upscaler's file to the device. With `sharing`, runs meet in its forward passes. Raises
    CheckpointError."""
    layout, dtype = CheckpointFiles.of(spec).upscaler, compute_dtype(spec.runtime.dtype, device)
    network = NETWORKS[layout.network](layout)
    stored = load_unscaled(WeightFile(spec.path), dtype)
    weights = {layout.names[name]: weight.to(dtype) for name, weight in stored.items() if name in layout.names}
    own = network.state_dict()
    missing, unused = own.keys() - weights.keys(), weights.keys() - own.keys()
    notes = check_names(spec.path, layout.network, network, missing, unused)
    try:
        network.load_state_dict({name: weight for name, weight in weights.items() if name in own}, assign=True)
    except RuntimeError as error:  # a shape that differs from those of the others
        raise CheckpointError(f"{spec.path} does not load as {layout.network}: {error}") from error
    move_modules([network.requires_grad_(False).eval()], device)
    copy_mapped_weights([network])
    components = {"unet": network}
    return Checkpoint(
        spec, type(network), {}, spec.runtime, components, {}, device, None, 1, tuple(notes),
        merger=ForwardMerger(network, sharing) if sharing is not None else None,
        identity=identity_of(components, device, 1, dtype),
    )  # fmt: skip


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def _leaky_relu(x: torch.Tensor) -> torch.Tensor:
    return functional.leaky_relu(x, SLOPE)
