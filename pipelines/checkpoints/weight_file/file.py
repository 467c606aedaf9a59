"""One file of weights: what it is and what is in it, all from one reading of its header."""

from functools import cached_property
from pathlib import Path
from typing import Final

from pipelines.checkpoints.errors import BrokenFile
from pipelines.checkpoints.weight_file.header import Header, Tensor, read_header
from pipelines.checkpoints.weight_file.kinds import FileKind, kind_by_header
from pipelines.checkpoints.weight_file.layout import component_prefixes, denoiser_tensors
from pipelines.checkpoints.weight_file.quantization import Quantization, read_quantization
from pipelines.checkpoints.weight_file.upscalers import UpscalerLayout, upscaler_layout

SINGLE_FILES: Final = (".safetensors", ".gguf")  # endings of checkpoints in one file


class WeightFile:
    """A file of weights. Its header is read when something first asks for it, and kept as long as this object: whoever
    wants to know of a later state of the file makes another one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _found(self) -> Header | BrokenFile:
        try:
            return read_header(self.path)
        except BrokenFile as error:
            return error

    @property
    def header(self) -> Header:
        """Return the header. Raises BrokenFile."""
        if isinstance(self._found, BrokenFile):
            raise self._found
        return self._found

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors. Raises BrokenFile."""
        return self.header.tensors

    @property
    def is_single(self) -> bool:
        """Return whether the file is called as a checkpoint in one file is."""
        return self.path.suffix in SINGLE_FILES

    @cached_property
    def kind(self) -> FileKind | None:
        """Return the kind of a file that is no image checkpoint; None if it is one, or of no known kind. Raises
        BrokenFile."""
        return kind_by_header(self.header)

    @cached_property
    def upscaler(self) -> UpscalerLayout | None:
        """Return the layout of an upscaler; None if the file is none, or can't be read."""
        if self.path.suffix != ".safetensors" or isinstance(self._found, BrokenFile):
            return None
        return upscaler_layout(self.tensors)

    @cached_property
    def quantization(self) -> Quantization:
        """Return how the weights are quantized. Raises BrokenFile."""
        return read_quantization(self.path, self.header) if self.is_single else Quantization({}, frozenset())

    @cached_property
    def denoiser_quantization(self) -> Quantization:
        """Return how the denoiser's weights alone are quantized. Raises BrokenFile."""
        if self.path.suffix != ".safetensors" or len(self.denoiser) == len(self.tensors):
            return self.quantization
        return read_quantization(self.path, Header(tuple(self.denoiser), self.header.metadata))

    @cached_property
    def denoiser(self) -> list[Tensor]:
        """Return the denoiser's tensors. Raises BrokenFile."""
        return denoiser_tensors(self.tensors)

    @cached_property
    def denoiser_weights(self) -> list[Tensor]:
        """Return the denoiser's tensors without those that only say how it is quantized; none of a broken file."""
        try:
            dropped = self.quantization.dropped
            return [tensor for tensor in self.denoiser if tensor.name not in dropped]
        except BrokenFile:
            return []

    @cached_property
    def others(self) -> tuple[str, ...]:
        """Return how the names of other components' tensors begin, such as "text_encoders.". Raises BrokenFile."""
        return component_prefixes(self.tensors)

    @property
    def has_other_components(self) -> bool:
        """Return whether the file has other components beside the denoiser."""
        if self.path.suffix != ".safetensors" or isinstance(self._found, BrokenFile):
            return False
        return bool(self.others) and self.kind is None
