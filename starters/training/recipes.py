"""The phases of a training, how long each takes, and how the parts become a pipeline.

Every phase can be interrupted and resumed. A phase uses the averaged weights of the earlier ones, finished or not.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch
from diffusers import DiffusionPipeline
from transformers import CLIPTokenizer, Qwen2Tokenizer

from starters import architectures
from starters.tokens import LENGTH, clip_tokenizer, qwen_tokenizer
from starters.training.average_codec import init_average_codec
from starters.training.dataset import SEED
from starters.training.dct_codec import init_dct_codec
from starters.training.decoders import CropConfig, decoder_of, train_decoder
from starters.training.loop import Run, Schedule, device
from starters.training.stages import Stage
from starters.training.text_encoder import TextEncoder, tokenizer_corpus, train_text_encoder
from starters.training.token_checks import ProbedTransformer
from starters.training.transformer import TransformerTraining, init_identity, rescale_attention, train_transformer
from starters.training.unet import UNetTraining, train_unet

Starter = Literal["alpha", "beta"]
Phase = Literal["text", "quarter", "half", "full", "decoder"]
MERGES: Final = 700  # of a tokenizer


@dataclass(frozen=True, slots=True)
class Recipe:
    """Steps, learning rates and batch sizes of every phase. The codecs' encoders are set, not trained."""

    text: Schedule
    text_batch: int
    stages: tuple[Stage, ...]  # of the generator
    decoder: Schedule
    crop: CropConfig

    @property
    def phases(self) -> tuple[Phase, ...]:
        return ("text", *(stage.kind for stage in self.stages), "decoder")


ON_CPU: Final[dict[Starter, Recipe]] = {
    "alpha": Recipe(
        text=Schedule(2200, 2e-3, 0.6),
        text_batch=32,
        stages=(Stage("half", 16, Schedule(10000, 2e-3, 0.3)), Stage("full", 8, Schedule(20000, 1.5e-3, 0.7))),
        decoder=Schedule(8000, 1.5e-3, 0.7),
        crop=CropConfig(160, 2),
    ),
    "beta": Recipe(
        text=Schedule(3000, 2e-3, 0.6),
        text_batch=32,
        stages=(
            Stage("quarter", 32, Schedule(8000, 1.5e-3, 0.3)),
            Stage("half", 16, Schedule(10000, 1.5e-3, 0.3)),
            Stage("full", 8, Schedule(30000, 1e-3, 0.8)),
        ),
        decoder=Schedule(8000, 1.5e-3, 0.7),
        crop=CropConfig(192, 2),
    ),
}
ON_GPU: Final[dict[Starter, Recipe]] = {
    "alpha": Recipe(
        text=Schedule(4000, 2e-3, 0.6),
        text_batch=128,
        stages=(Stage("half", 128, Schedule(40000, 2e-3, 0.3)), Stage("full", 64, Schedule(40000, 1.5e-3, 0.7))),
        decoder=Schedule(12000, 1.5e-3, 0.7),
        crop=CropConfig(256, 32),
    ),
    "beta": Recipe(
        text=Schedule(4000, 1.5e-3, 0.5),
        text_batch=128,
        stages=(
            Stage("quarter", 256, Schedule(20000, 2e-3, 0.3)),
            Stage("half", 128, Schedule(30000, 2e-3, 0.3)),
            Stage("full", 64, Schedule(40000, 1.5e-3, 0.7)),
        ),
        decoder=Schedule(12000, 1.5e-3, 0.7),
        crop=CropConfig(320, 16),
    ),
}


def recipe_for(starter: Starter) -> Recipe:
    return (ON_GPU if device().type == "cuda" else ON_CPU)[starter]


class Training:
    """One starter's training, with its state in a folder."""

    def __init__(self, starter: Starter, folder: Path, recipe: Recipe | None = None) -> None:
        self.starter, self.folder, self.recipe = starter, folder, recipe or recipe_for(starter)
        torch.manual_seed(SEED)

    def train(self, phases: Sequence[Phase] = (), minutes: float = float("inf")) -> bool:
        """Train these phases, or all, until they are finished or the time is up. Returns whether they are finished."""
        until = time.monotonic() + 60 * minutes
        return all(self.run(phase, until).finished for phase in phases or self.recipe.phases)

    def run(self, phase: Phase, until: float = 0.0) -> Run:
        """Train a phase until it is finished, or until then (seconds, monotonic clock)."""
        name, recipe = f"{self.starter}-{phase}", self.recipe
        if phase == "text":
            return train_text_encoder(self.folder, name, self._new_encoder(), recipe.text, recipe.text_batch, until)
        if phase == "decoder":
            return train_decoder(self.folder, name, self._new_codec(), recipe.decoder, recipe.crop, until)
        index = next(i for i, stage in enumerate(recipe.stages) if stage.kind == phase)
        stage = recipe.stages[index]
        network = self._network(index)
        if self.starter == "alpha":
            unet = UNetTraining(self._encoder(), architectures.alpha_scheduler(), stage)
            return train_unet(self.folder, name, network, unet, stage.schedule, until)
        flow = TransformerTraining(self._new_codec().bn, self._encoder(), stage)
        return train_transformer(self.folder, name, network, flow, stage.schedule, until)

    def pipeline(self) -> DiffusionPipeline:
        """The averaged weights of all phases as a pipeline, in fp16."""
        codec, encoder = self._new_codec(), self._encoder()
        decoder = decoder_of(self.run("decoder").average)
        codec.load_state_dict(decoder, strict=False)
        generator: Any = self.run(self.recipe.stages[-1].kind).average
        if self.starter == "alpha":
            pipeline = architectures.stable_diffusion(codec, generator, self._tokenizer(), encoder.network)
        else:
            text = architectures.qwen_text(encoder.network.cpu())
            pipeline = architectures.klein(codec, generator.network, self._tokenizer(), text)
        return pipeline.to("cpu", torch.float16)

    def _network(self, index: int) -> Any:
        """The initial network of a stage: the result of the stage before, or untrained."""
        if index:
            stages = self.recipe.stages
            earlier_note = self.run(stages[index - 1].kind).average.requires_grad_(True)
            return (
                earlier_note
                if self.starter == "alpha"
                else rescale_attention(earlier_note, stages[index - 1], stages[index])
            )
        if self.starter == "alpha":
            return architectures.alpha_unet()
        return ProbedTransformer(init_identity(architectures.beta_transformer()))

    def _new_codec(self) -> Any:
        if self.starter == "alpha":
            return init_average_codec(architectures.alpha_codec())
        return init_dct_codec(architectures.beta_codec())

    def _encoder(self) -> TextEncoder:
        return cast("TextEncoder", self.run("text").average)

    def _new_encoder(self) -> TextEncoder:
        tokenizer = self._tokenizer()
        network = (architectures.alpha_text if self.starter == "alpha" else architectures.beta_text_trunk)(
            len(tokenizer)
        )
        return TextEncoder(network, tokenizer, network.config.hidden_size)

    def save_tokenizer(self, tokenizer: CLIPTokenizer | Qwen2Tokenizer) -> None:
        """Use this tokenizer, unless the training has one already."""
        if not self._tokenizer_folder.exists():
            tokenizer.save_pretrained(self._tokenizer_folder)

    @property
    def earlier_note(self) -> Path:
        """A file with the training line of the checkpoint that a warm start began from."""
        return self.folder / f"{self.starter}-before.txt"

    @property
    def _tokenizer_folder(self) -> Path:
        return self.folder / f"{self.starter}-tokenizer"

    def _tokenizer(self) -> CLIPTokenizer | Qwen2Tokenizer:
        """Trained once: its token ids index the encoder's embeddings."""
        folder = self._tokenizer_folder
        if not folder.exists():
            make = clip_tokenizer if self.starter == "alpha" else qwen_tokenizer
            self.save_tokenizer(make(tokenizer_corpus(), MERGES, LENGTH))
        return (CLIPTokenizer if self.starter == "alpha" else Qwen2Tokenizer).from_pretrained(folder)
