"""What each part of a published checkpoint takes: its weights, and the peak of each of its calls beside them."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.real_memory.networks import CHECKPOINTS, Encoder, Network, RealCheckpoint, weights
from benchmarks.real_memory.peak import fused_attention, peak_bytes
from pipelines.checkpoints.memory.device_bytes import quantized_bytes
from pipelines.checkpoints.weight_file.header import Tensor
from pipelines.images.loading.fp8 import Fp8Linear, suitable_linears
from pipelines.protocol.images import Quantize

BFLOAT16_BYTES: Final = 2
SIDE_PX: Final = 1024  # of what is drawn in one piece: larger images are redrawn in tiles of this size
ROWS: Final = (1, 4)  # images of one pass
CODEC_PX: Final = 8


@dataclass(frozen=True)
class Part:
    """A component: the bytes of its tensors in bfloat16, by name, and the peaks of its calls in bytes."""

    tensors: tuple[Tensor, ...]
    peaks: Mapping[str, int]

    def sizes(self, quantize: Quantize = "none") -> list[float]:
        """Return the bytes of its tensors, as the catalog estimates them."""
        return [quantized_bytes(tensor, quantize, BFLOAT16_BYTES) for tensor in self.tensors]


@dataclass(frozen=True)
class Measured:
    """A checkpoint's parts. Those of the denoiser are by how it is quantized."""

    denoiser: Mapping[Quantize, Part]
    encoders: Sequence[Part]
    codec: Part

    def sizes(self, quantize: Quantize) -> dict[str, list[float]]:
        """Return the bytes of the tensors, by component."""
        encoders = {f"text_encoder_{number}": part.sizes() for number, part in enumerate(self.encoders)}
        return {"transformer": self.denoiser[quantize].sizes(quantize), **encoders, "vae": self.codec.sizes()}


@functools.cache
def measured(name: str) -> Measured:
    """Run the parts of a checkpoint on fake tensors."""
    checkpoint = next(each for each in CHECKPOINTS if each.name == name)
    with _fake():
        encoders = [_encoder(each) for each in checkpoint.encoders]
        return Measured(_denoiser(checkpoint), encoders, _codec(checkpoint))


@contextmanager
def _fake() -> Iterator[None]:
    functional = torch.nn.functional
    with FakeTensorMode(allow_non_fake_inputs=True), patch.object(
        functional, "scaled_dot_product_attention", fused_attention
    ):  # fmt: skip
        yield


def made(make: Callable[[], Network]) -> Network:
    torch.set_default_dtype(torch.bfloat16)
    try:
        return make().eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(torch.float32)


def _tensors(network: Network) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name, "BF16", tuple(weight.shape), weight.numel() * BFLOAT16_BYTES)
        for name, weight in network.named_parameters()
    )


def _encoder(encoder: Encoder) -> Part:
    network = made(encoder.make)
    options: dict[str, Any] = {"output_hidden_states": encoder.all_layers}
    ids = torch.zeros(1, encoder.tokens, dtype=torch.long)
    return Part(_tensors(network), {"prompt": peak_bytes(lambda: network(ids, **options))})


def _denoiser(checkpoint: RealCheckpoint) -> dict[Quantize, Part]:
    network = made(checkpoint.denoiser)
    tensors = _tensors(network)
    found: dict[Quantize, Part] = {"none": Part(tensors, _steps(checkpoint, network))}
    layer = max(tensor.bytes for tensor in tensors)  # float8 makes one at a time bfloat16 again
    found["float8"] = Part(tensors, {call: peak + layer for call, peak in found["none"].peaks.items()})
    for name, layer in suitable_linears(network).items():
        parent, _, attribute = name.rpartition(".")
        network.get_submodule(parent)._modules[attribute] = Fp8Linear(layer)
    found["fp8"] = Part(tensors, _steps(checkpoint, network))
    return found


def _steps(checkpoint: RealCheckpoint, network: Network) -> dict[str, int]:
    peaks = {}
    for rows in ROWS:
        for references in (0, 1, 4) if checkpoint.references and rows == 1 else (0,):
            step = functools.partial(checkpoint.step, network, rows * checkpoint.rows, SIDE_PX, SIDE_PX, references)
            peaks[f"{rows} rows, {references} references"] = peak_bytes(step)
    return peaks


def _codec(checkpoint: RealCheckpoint) -> Part:
    network: Any = made(checkpoint.codec)
    frames = (1,) if checkpoint.frames else ()
    side = SIDE_PX // CODEC_PX
    latents, pixels = (checkpoint.latent_channels, *frames, side, side), (3, *frames, SIDE_PX, SIDE_PX)
    peaks = {
        "decode": peak_bytes(lambda: network.decode(weights(1, *latents))),
        "encode": peak_bytes(lambda: network.encode(weights(1, *pixels))),
    }
    return Part(_tensors(network), peaks)
