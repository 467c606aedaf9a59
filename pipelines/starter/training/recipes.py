"""What is trained for how long, in which order, and how the parts become checkpoints.

Every phase can be broken off; the next command goes on from there. What a phase uses of an earlier one is the average
of that one's weights, finished or not.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

import torch
from diffusers import DiffusionPipeline
from torch import nn
from transformers import CLIPTokenizer, Qwen2Tokenizer

from pipelines.starter import architectures
from pipelines.starter.tokens import LENGTH, clip_tokenizer, qwen_tokenizer
from pipelines.starter.training.averages import set_to_averages
from pipelines.starter.training.codecs import Cut, polish_codec, train_codec
from pipelines.starter.training.latents import Latents
from pipelines.starter.training.loop import Run, Schedule, device
from pipelines.starter.training.pictures import SEED
from pipelines.starter.training.texts import Encoder, train_text, words_to_learn
from pipelines.starter.training.transformer import (
    MEASURED,
    TransformerTraining,
    measure_latents,
    train_transformer,
)
from pipelines.starter.training.unet import Stage, UNetTraining, train_unet

Starter = Literal["alpha", "beta"]
Phase = Literal["codec", "text", "sketch", "generator", "polish"]
PHASES: Final[tuple[Phase, ...]] = ("codec", "text", "sketch", "generator", "polish")
PIECES: Final = 700  # of words, that a tokenizer knows


@dataclass(frozen=True, slots=True)
class Recipe:
    """How long and on how much a starter is trained."""

    codec: Schedule
    cut: Cut
    text: Schedule
    text_batch: int
    generator: Schedule
    stages: tuple[Stage, ...]
    polish: Schedule


# starter-alpha's encoder is set, not learned (averages.py), so it has no codec to train before the generator.
ON_CPU: Final[dict[Starter, Recipe]] = {
    "alpha": Recipe(
        codec=Schedule(0, 0.0),
        cut=Cut(160, 2),
        text=Schedule(2200, 2e-3, 0.6),
        text_batch=32,
        generator=Schedule(20000, 2e-3, 0.5),
        stages=(Stage("half", 0.5, 16), Stage("full", 0.5, 8)),
        polish=Schedule(8000, 1.5e-3, 0.7),
    ),
    "beta": Recipe(
        codec=Schedule(8000, 1.5e-3, 0.7),
        cut=Cut(160, 2),
        text=Schedule(3000, 2e-3, 0.6),
        text_batch=32,
        generator=Schedule(12000, 1e-3),
        stages=(Stage("tiny", 0.5, 16, 4000), Stage("small", 0.35, 8, 2000), Stage("full", 0.15, 4, 300)),
        polish=Schedule(4000, 1e-3, 0.8),
    ),
}
ON_GPU: Final[dict[Starter, Recipe]] = {
    "alpha": Recipe(
        codec=Schedule(0, 0.0),
        cut=Cut(256, 32),
        text=Schedule(4000, 2e-3, 0.6),
        text_batch=128,
        generator=Schedule(40000, 1.5e-3, 0.5),
        stages=(Stage("half", 0.5, 128), Stage("full", 0.5, 64)),
        polish=Schedule(12000, 1.5e-3, 0.7),
    ),
    "beta": Recipe(
        codec=Schedule(12000, 1.2e-3, 0.7),
        cut=Cut(256, 32),
        text=Schedule(4000, 1.5e-3, 0.5),
        text_batch=128,
        generator=Schedule(50000, 8e-4),
        stages=(Stage("small", 0.6, 128, 6000), Stage("full", 0.4, 32, 3000)),
        polish=Schedule(8000, 1e-3, 0.8),
    ),
}


def recipe_for(starter: Starter) -> Recipe:
    """The one for this machine."""
    return (ON_GPU if device().type == "cuda" else ON_CPU)[starter]


class Training:
    """One starter's training, kept in a folder."""

    def __init__(self, starter: Starter, folder: Path, recipe: Recipe | None = None) -> None:
        self.starter, self.folder, self.recipe = starter, folder, recipe or recipe_for(starter)
        torch.manual_seed(SEED)

    def go_on(self, phases: Sequence[Phase] = PHASES, minutes: float = float("inf")) -> bool:
        """Train until all phases are finished or the time is up. Whether they are finished."""
        until = time.monotonic() + 60 * minutes
        return all(self.run(phase, until).finished for phase in phases)

    def run(self, phase: Phase, until: float = 0.0) -> Run:
        """A phase, as far as it gets until then (seconds, monotonic clock)."""
        name, recipe = f"{self.starter}-{phase}", self.recipe
        if phase == "codec":
            return train_codec(self.folder, name, self._new_codec(), recipe.codec, recipe.cut, until)
        if phase == "text":
            return train_text(self.folder, name, self._new_encoder(), recipe.text, recipe.text_batch, until)
        if phase == "sketch":
            return self._sketch(until)
        if phase == "polish":
            codec = self.run("codec").average.requires_grad_(True)
            return polish_codec(self.folder, name, codec, recipe.polish, recipe.cut, until)
        return self._generator(until)

    def pipeline(self) -> DiffusionPipeline:
        """The averages of all phases as a pipeline, in fp16."""
        codec = self.run("polish").average
        encoder, network = self._encoder(), self.run("generator").average
        if self.starter == "alpha":
            whole = architectures.stable_diffusion(codec, network, self._tokenizer(), encoder.network)
        else:
            self._measure(self._latents(codec))
            text = architectures.qwen_text(encoder.network.cpu())
            whole = architectures.klein(codec, network, self._tokenizer(), text)
        return whole.to("cpu", torch.float16)

    def _sketch(self, until: float) -> Run:
        """starter-alpha's UNet on pictures of half the size, which teach it as much in a quarter of the time."""
        recipe, name = self.recipe, f"{self.starter}-sketch"
        if self.starter == "beta":  # its transformer sees small pictures in the generator's own run
            return Run(self.folder / f"{name}.pt", nn.Linear(1, 1), Schedule(0, 0.0))
        drawing = UNetTraining(self._encoder(), architectures.alpha_scheduler(), recipe.stages[0])
        return train_unet(self.folder, name, architectures.alpha_unet(), drawing, recipe.generator, until)

    def _generator(self, until: float) -> Run:
        recipe, name = self.recipe, f"{self.starter}-generator"
        if self.starter == "alpha":
            drawing = UNetTraining(self._encoder(), architectures.alpha_scheduler(), recipe.stages[1])
            network = self.run("sketch").average.requires_grad_(True)
            return train_unet(self.folder, name, network, drawing, recipe.generator, until)
        latents = self._latents(self.run("codec").average)
        self._measure(latents)
        network = architectures.beta_transformer()
        flow = TransformerTraining(latents, self._encoder(), recipe.stages, recipe.generator.steps)
        return train_transformer(self.folder, name, network, flow, recipe.generator, until)

    def _measure(self, latents: Latents) -> None:
        first = self.recipe.stages[0]
        measure_latents(latents, first.kind, min(MEASURED, first.pictures))

    def _latents(self, codec: nn.Module) -> Latents:
        return Latents(self.folder, codec)

    def _new_codec(self) -> nn.Module:
        alpha = self.starter == "alpha"
        codec: nn.Module = set_to_averages(architectures.alpha_codec()) if alpha else architectures.beta_codec()
        return codec

    def _encoder(self) -> Encoder:
        return cast("Encoder", self.run("text").average)

    def _new_encoder(self) -> Encoder:
        tokenizer = self._tokenizer()
        network = (architectures.alpha_text if self.starter == "alpha" else architectures.beta_text_trunk)(
            len(tokenizer)
        )
        return Encoder(network, tokenizer, network.config.hidden_size)

    def keep_tokenizer(self, tokenizer: CLIPTokenizer | Qwen2Tokenizer) -> None:
        """Use this one, unless the training has one."""
        if not self._tokenizer_folder.exists():
            tokenizer.save_pretrained(self._tokenizer_folder)

    @property
    def before(self) -> Path:
        """The file that says what a checkpoint had learned that this training goes on from."""
        return self.folder / f"{self.starter}-before.txt"

    @property
    def _tokenizer_folder(self) -> Path:
        return self.folder / f"{self.starter}-tokenizer"

    def _tokenizer(self) -> CLIPTokenizer | Qwen2Tokenizer:
        """Learnt once: its pieces number the encoder's embeddings."""
        folder = self._tokenizer_folder
        if not folder.exists():
            learn = clip_tokenizer if self.starter == "alpha" else qwen_tokenizer
            self.keep_tokenizer(learn(words_to_learn(), PIECES, LENGTH))
        return (CLIPTokenizer if self.starter == "alpha" else Qwen2Tokenizer).from_pretrained(folder)
