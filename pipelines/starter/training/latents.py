"""Pictures as latents, made once: training reads nothing else."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipelines.starter.training.codecs import encode
from pipelines.starter.training.loop import device
from pipelines.starter.training.pictures import Part, numbers_of, picture, scene_of

AT_ONCE: Final = 8  # pictures are encoded together
KEEP_EVERY: Final = 64  # pictures, so that a run that is broken off loses little


def fingerprint(codec: nn.Module) -> str:
    """Another one for every encoder, so that latents never come from an older one."""
    digest = hashlib.sha256()
    for name, tensor in sorted(codec.state_dict().items()):
        if name.startswith(("encoder", "quant_conv")):
            digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Latents:
    """The latents of a codec. `folder` is where all training is kept."""

    folder: Path
    codec: nn.Module

    def of(self, kind: str, size: tuple[int, int], count: int, part: Part = "scene") -> tuple[list[int], Tensor]:
        """The numbers among the first `count` that have a picture of this size, and its latents, (n, c, h, w), fp16."""
        file = self.folder / "latents" / fingerprint(self.codec) / f"{kind}-{part}-{size[0]}x{size[1]}.safetensors"
        numbers = [n for n in numbers_of(kind, size, count) if part != "second" or scene_of(part, n) is not None]
        known = load_file(file)["latents"] if file.exists() else torch.empty(0)
        while len(known) < len(numbers):
            known = self._more(known, kind, numbers, part)
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({"latents": known}, file.with_suffix(".part"))
            file.with_suffix(".part").rename(file)
        return numbers, known[: len(numbers)]

    @torch.no_grad()
    def _more(self, known: Tensor, kind: str, numbers: list[int], part: Part) -> Tensor:
        """Some more of them at the end."""
        wanted = numbers[len(known) : len(known) + KEEP_EVERY]
        made = [] if len(known) == 0 else [known]
        for start in range(0, len(wanted), AT_ONCE):
            pictures = [picture(self.folder, kind, number, part) for number in wanted[start : start + AT_ONCE]]
            pixels = torch.stack([as_pixels(image) for image in pictures if image is not None])
            made.append(encode(self.codec, pixels.to(device())).cpu().half().contiguous())
        return torch.cat(made)


def as_pixels(image: Image.Image) -> Tensor:
    """From -1 to 1, (3, height, width)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(127.5).sub(1)
