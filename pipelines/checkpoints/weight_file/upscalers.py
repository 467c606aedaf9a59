"""Upscalers in the layouts of ESRGAN and Real-ESRGAN, by the names and shapes in a file's header.

ESRGAN's networks (RRDBNet) are published in the names of its first code (`model.0.`), of its later one (`RRDB_trunk.`)
and of Real-ESRGAN's (`body.0.rdb1.`); Real-ESRGAN's small ones (SRVGGNetCompact) are a plain row of convolutions.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Literal

from pipelines.checkpoints.weight_file.header import Tensor

Network = Literal["RRDBNet", "SRVGGNetCompact"]
PREFIX: Final = re.compile(r"^(module\.)?(params_ema\.|params\.)?(module\.)?")
RENAMED: Final = (  # earlier names of RRDBNet -> Real-ESRGAN's
    (re.compile(r"^model\.0\."), "conv_first."),
    (re.compile(r"^model\.1\.sub\.(\d+)\.RDB(\d)\.conv(\d)\.0\."), r"body.\1.rdb\2.conv\3."),
    (re.compile(r"^model\.1\.sub\.\d+\.(weight|bias)$"), r"conv_body.\1"),
    (re.compile(r"^RRDB_trunk\.(\d+)\.RDB(\d)\."), r"body.\1.rdb\2."),
    (re.compile(r"^trunk_conv\."), "conv_body."),
    (re.compile(r"^upconv(\d)\."), r"conv_up\1."),
    (re.compile(r"^HRconv\."), "conv_hr."),
)
LATER: Final = re.compile(r"^model\.(\d+)\.(weight|bias)$")  # the convolutions after RRDBNet's body, by their place
COLOURS: Final = 3
LARGEST_SCALE: Final = 8


@dataclass(frozen=True, slots=True)
class UpscalerLayout:
    """The hyperparameters of the network in an upscaler's file. `names` maps the names of the file's tensors to the
    module's."""

    network: Network
    scale: int
    features: int
    blocks: int  # of an RRDBNet; of the other, its convolutions between the first and the last
    growth: int  # of a dense block
    unshuffle: int  # how many pixels along a side an RRDBNet folds into channels first
    names: Mapping[str, str]

    @property
    def index(self) -> dict[str, Any]:
        """Return what a diffusers folder of the network would have in model_index.json."""
        return {"_class_name": self.network, "unet": ["darkroom", self.network]}

    @property
    def problem(self) -> str | None:
        """Return why the network can't be filled from the file, by the names of its tensors; None if it can."""
        found, wanted = set(self.names.values()), set(_names(self))
        if more := sorted(name for name, own in self.names.items() if own not in wanted):
            return f"an upscaler, but no {self.network}, which has no {more[0]}: no other network is loaded"
        return f"an upscaler without {min(wanted - found)}: it is not whole" if wanted - found else None


def _names(layout: UpscalerLayout) -> Iterator[str]:
    """Yield the names of all weights of a network, as Real-ESRGAN has them."""
    if layout.network == "SRVGGNetCompact":
        for place in range(0, 2 * layout.blocks + 3, 2):
            yield from (f"body.{place}.weight", f"body.{place}.bias")
        yield from (f"body.{place}.weight" for place in range(1, 2 * layout.blocks + 2, 2))
        return
    doublings = round(math.log2(layout.scale * layout.unshuffle))
    ups = (f"conv_up{number}" for number in range(1, doublings + 1))
    places = product(range(layout.blocks), range(1, 4), range(1, 6))
    body = (f"body.{block}.rdb{dense}.conv{place}" for block, dense, place in places)
    for name in ("conv_first", *body, "conv_body", *ups, "conv_hr", "conv_last"):
        yield from (f"{name}.weight", f"{name}.bias")


def upscaler_layout(tensors: Iterable[Tensor]) -> UpscalerLayout | None:
    """Return the layout of a file with these tensors; None if it is no upscaler of the two networks, or enlarges
    nothing."""
    listed = list(tensors)
    is_averaged = any(tensor.name.startswith("params_ema.") for tensor in listed)
    used = [tensor for tensor in listed if not (is_averaged and tensor.name.startswith("params."))]
    places = sorted({int(match[1]) for tensor in used if (match := LATER.match(_without_prefix(tensor.name)))} - {0})
    names = {tensor.name: _official_name(_without_prefix(tensor.name), places) for tensor in used}
    shapes = {names[tensor.name]: tensor.shape for tensor in used}
    layouts = (*_rrdb_layout(shapes, names), *_compact_layout(shapes, names))
    return next((each for each in layouts if each.names and 1 < each.scale <= LARGEST_SCALE), None)


def _without_prefix(name: str) -> str:
    return PREFIX.sub("", name)


def _official_name(name: str, places: list[int]) -> str:
    """Return Real-ESRGAN's name of a tensor. Of the later convolutions the last two finish the image, and each of the
    others follows a doubling of its sides."""
    for pattern, new in RENAMED:
        if pattern.search(name):
            return pattern.sub(new, name)
    if (match := LATER.match(name)) is None:
        return name
    place = places.index(int(match[1])) + 1
    last = {len(places): "conv_last", len(places) - 1: "conv_hr"}
    return f"{last.get(place, f'conv_up{place}')}.{match[2]}"


def _rrdb_layout(shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str]) -> Iterator[UpscalerLayout]:
    first, dense = shapes.get("conv_first.weight"), shapes.get("body.0.rdb1.conv1.weight")
    if first is None or dense is None or "conv_last.weight" not in shapes:
        return
    unshuffle = math.isqrt(first[1] // COLOURS)
    blocks = 1 + max(int(name.split(".")[1]) for name in shapes if name.startswith("body."))
    doublings = sum(name.startswith("conv_up") and name.endswith("weight") for name in shapes)
    if first[1] == COLOURS * unshuffle**2 and 2**doublings % unshuffle == 0:
        yield UpscalerLayout("RRDBNet", 2**doublings // unshuffle, first[0], blocks, dense[0], unshuffle, names)


def _compact_layout(shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str]) -> Iterator[UpscalerLayout]:
    """Every second part of its body is the slopes of a PReLU, one for a channel."""
    convolutions = [name for name in shapes if name.startswith("body.") and len(shapes[name]) == 4]
    last = f"body.{2 * (len(convolutions) - 1)}.weight"
    if len(convolutions) < 2 or last not in shapes or len(shapes.get("body.1.weight", ())) != 1:
        return
    scale = math.isqrt(shapes[last][0] // COLOURS)
    first = shapes["body.0.weight"]
    if first[1] == COLOURS and shapes[last][0] == COLOURS * scale**2:
        yield UpscalerLayout("SRVGGNetCompact", scale, first[0], len(convolutions) - 2, 0, 1, names)
