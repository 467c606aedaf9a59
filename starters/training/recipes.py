"""What is trained for how long, in which order, and how the parts become checkpoints.

Every phase can be broken off; the next command goes on from there. What a phase uses of an earlier one is the average
of that one's weights, finished or not.
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
from starters.training.averages import set_to_averages
from starters.training.codecs import Cut, decoder_of, train_decoder
from starters.training.cosines import set_to_cosines
from starters.training.loop import Run, Schedule, device
from starters.training.pictures import SEED
from starters.training.stages import Stage
from starters.training.texts import Encoder, train_text, words_to_learn
from starters.training.transformer import TransformerTraining, set_to_pass, sharpened, train_transformer
from starters.training.understanding import Understanding
from starters.training.unet import UNetTraining, train_unet

Starter = Literal["alpha", "beta"]
Phase = Literal["text", "quarter", "half", "full", "decoder"]
PIECES: Final = 700  # of words, that a tokenizer knows


@dataclass(frozen=True, slots=True)
class Recipe:
    """How long and on how much a starter is trained. Codecs' encoders are set, so they have no phase of their own."""

    text: Schedule
    text_batch: int
    stages: tuple[Stage, ...]  # of the generator
    decoder: Schedule
    cut: Cut

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What is trained, in order."""
        return ("text", *(stage.kind for stage in self.stages), "decoder")


ON_CPU: Final[dict[Starter, Recipe]] = {
    "alpha": Recipe(
        text=Schedule(2200, 2e-3, 0.6),
        text_batch=32,
        stages=(Stage("half", 16, Schedule(10000, 2e-3, 0.3)), Stage("full", 8, Schedule(20000, 1.5e-3, 0.7))),
        decoder=Schedule(8000, 1.5e-3, 0.7),
        cut=Cut(160, 2),
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
        cut=Cut(192, 2),
    ),
}
ON_GPU: Final[dict[Starter, Recipe]] = {
    "alpha": Recipe(
        text=Schedule(4000, 2e-3, 0.6),
        text_batch=128,
        stages=(Stage("half", 128, Schedule(40000, 2e-3, 0.3)), Stage("full", 64, Schedule(40000, 1.5e-3, 0.7))),
        decoder=Schedule(12000, 1.5e-3, 0.7),
        cut=Cut(256, 32),
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
        cut=Cut(320, 16),
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

    def go_on(self, phases: Sequence[Phase] = (), minutes: float = float("inf")) -> bool:
        """Train until these phases, or all, are finished or the time is up. Whether they are finished."""
        until = time.monotonic() + 60 * minutes
        return all(self.run(phase, until).finished for phase in phases or self.recipe.phases)

    def run(self, phase: Phase, until: float = 0.0) -> Run:
        """A phase, as far as it gets until then (seconds, monotonic clock)."""
        name, recipe = f"{self.starter}-{phase}", self.recipe
        if phase == "text":
            return train_text(self.folder, name, self._new_encoder(), recipe.text, recipe.text_batch, until)
        if phase == "decoder":
            return train_decoder(self.folder, name, self._new_codec(), recipe.decoder, recipe.cut, until)
        place = next(i for i, stage in enumerate(recipe.stages) if stage.kind == phase)
        stage = recipe.stages[place]
        network = self._network(place)
        if self.starter == "alpha":
            unet = UNetTraining(self._encoder(), architectures.alpha_scheduler(), stage)
            return train_unet(self.folder, name, network, unet, stage.schedule, until)
        flow = TransformerTraining(self._new_codec().bn, self._encoder(), stage)
        return train_transformer(self.folder, name, network, flow, stage.schedule, until)

    def pipeline(self) -> DiffusionPipeline:
        """The averages of all phases as a pipeline, in fp16."""
        codec, encoder = self._new_codec(), self._encoder()
        decoder = decoder_of(self.run("decoder").average)
        codec.load_state_dict(decoder, strict=False)
        drawer: Any = self.run(self.recipe.stages[-1].kind).average
        if self.starter == "alpha":
            whole = architectures.stable_diffusion(codec, drawer, self._tokenizer(), encoder.network)
        else:
            text = architectures.qwen_text(encoder.network.cpu())
            whole = architectures.klein(codec, drawer.network, self._tokenizer(), text)
        return whole.to("cpu", torch.float16)

    def _network(self, place: int) -> Any:
        """What a stage begins with: the one before, or nothing learned."""
        if place:
            stages = self.recipe.stages
            before = self.run(stages[place - 1].kind).average.requires_grad_(True)
            return before if self.starter == "alpha" else sharpened(before, stages[place - 1], stages[place])
        if self.starter == "alpha":
            return architectures.alpha_unet()
        return Understanding(set_to_pass(architectures.beta_transformer()))

    def _new_codec(self) -> Any:
        if self.starter == "alpha":
            return set_to_averages(architectures.alpha_codec())
        return set_to_cosines(architectures.beta_codec())

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
