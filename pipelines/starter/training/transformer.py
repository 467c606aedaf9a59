"""starter-beta's transformer: rectified flow, from noise, a prompt and up to two reference pictures to latents.

Half of every batch is at exactly the noise levels that drawing in four steps visits, which is a cheap way to few steps.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
from diffusers import Flux2KleinPipeline
from torch import Tensor, nn
from torch.nn import functional

from pipelines.starter.training.latents import Latents
from pipelines.starter.training.loop import Run, Schedule, device, fast_math
from pipelines.starter.training.pictures import SIZES, Part, rng_for, train_edit, train_scene
from pipelines.starter.training.texts import Encoder
from pipelines.starter.training.unet import Stage, train_caption

Task = Literal["draw", "edit", "combine"]
TASKS: Final[tuple[Task, ...]] = ("draw", "edit", "combine")
MIX: Final = (0.5, 0.35, 0.15)
STEPS_DRAWN: Final = 4
SHIFT: Final = 2.0  # the scheduler's: more noise than even steps would have
MEASURED: Final = 256  # pictures whose latents decide what mean 0 and variance 1 are
SPREAD: Final = {"tiny": 4, "small": 2, "full": 1}  # tokens of a full-sized picture for one of these, along a side
Positions = Tensor  # (tokens, 4): picture, row, column, place in the text


def inference_sigmas(steps: int, shift: float = SHIFT) -> Tensor:
    """The noise levels that a drawing of so many steps visits, from 1 down."""
    even = torch.linspace(1, 1 / steps, steps)
    return shift * even / (1 + (shift - 1) * even)


def patchify(latents: Tensor) -> Tensor:
    """(n, c, h, w) to (n, 4c, h/2, w/2)."""
    return Flux2KleinPipeline._patchify_latents(latents)  # type: ignore[no-any-return]


@torch.no_grad()
def measure_latents(latents: Latents, kind: str, count: int) -> None:
    """Set the statistics that the codec's batch norm keeps and the pipeline normalises by."""
    sizes = list(dict.fromkeys(SIZES[kind]))
    parts = [latents.of(kind, size, count)[1].float() for size in sizes]
    tokens = torch.cat([patchify(part).permute(0, 2, 3, 1).flatten(0, 2) for part in parts])
    norm = latents.codec.bn
    norm.running_mean.copy_(tokens.mean(0))  # type: ignore[union-attr,operator]
    norm.running_var.copy_(tokens.var(0))  # type: ignore[union-attr,operator]


def stage_at(stages: Sequence[Stage], step: int, steps: int) -> Stage:
    """The stage that a step belongs to: they follow each other."""
    done = 0.0
    for stage in stages:
        done += stage.share * steps
        if step < done:
            return stage
    return stages[-1]


class TransformerTraining:
    """The losses of starter-beta."""

    def __init__(self, latents: Latents, encoder: Encoder, stages: Sequence[Stage], steps: int) -> None:
        self.latents, self.encoder, self.stages, self.steps = latents, encoder, stages, steps
        self._open: dict[tuple[str, tuple[int, int], Part], tuple[list[int], Tensor]] = {}

    def loss(self, network: nn.Module, step: int) -> Tensor:
        """The error of the predicted velocity."""
        stage = stage_at(self.stages, step, self.steps)
        rng = rng_for(8, step)
        task = TASKS[int(rng.choice(len(TASKS), p=MIX))]
        place = int(rng.integers(len(SIZES[stage.kind])))
        clean, texts, references = getattr(self, f"_{task}")(stage, place, rng, step)
        sigmas = self._sigmas(len(clean)).to(clean.device)
        noise = torch.randn_like(clean)
        noisy = torch.lerp(clean, noise, sigmas[:, None, None, None])
        tokens, positions = self._pack([noisy, *references], scale=SPREAD[stage.kind])
        with fast_math(device()):
            with torch.no_grad():
                said = self.encoder(self.encoder.tokens(texts)).repeat(1, 1, 3)  # the three layers that are read agree
            drawn = network(
                hidden_states=tokens,
                timestep=sigmas,
                encoder_hidden_states=said,
                txt_ids=Flux2KleinPipeline._prepare_text_ids(said).to(clean.device),
                img_ids=positions.to(clean.device),
                return_dict=False,
            )[0]
        wanted = (noise - clean).flatten(2).transpose(1, 2)
        return functional.mse_loss(drawn[:, : wanted.shape[1]].float(), wanted)

    def _sigmas(self, batch: int) -> Tensor:
        visited = inference_sigmas(STEPS_DRAWN)[torch.randint(STEPS_DRAWN, (batch,))]
        even = torch.rand(batch)
        anywhere = SHIFT * even / (1 + (SHIFT - 1) * even)
        return torch.where(torch.arange(batch) % 2 == 0, visited, anywhere)

    def _pack(self, pictures: list[Tensor], scale: int) -> tuple[Tensor, Positions]:
        """Tokens and positions of the picture and its references, as the pipeline counts them.

        Small pictures leave positions out, so that they mean the same places in a scene as full-sized ones.
        """
        noisy, *references = pictures
        positions = [Flux2KleinPipeline._prepare_latent_ids(noisy)]
        if references:
            ids = Flux2KleinPipeline._prepare_image_ids([reference[:1] for reference in references])
            positions.append(ids.expand(len(noisy), -1, -1))
        spread = torch.tensor((1, scale, scale, 1))
        tokens = torch.cat([picture.flatten(2).transpose(1, 2) for picture in pictures], dim=1)
        return tokens, torch.cat([ids.cpu() * spread for ids in positions], dim=1)

    def _draw(
        self, stage: Stage, place: int, rng: np.random.Generator, step: int
    ) -> tuple[Tensor, list[str], list[Tensor]]:
        size = SIZES[stage.kind][place]
        numbers, latents = self._of(stage, stage.kind, size, "scene")
        rows = rng.integers(len(numbers), size=stage.batch)
        texts = [train_caption(train_scene(numbers[row]), 9, step, i) for i, row in enumerate(rows)]
        return self._normal(latents, rows), texts, []

    def _edit(
        self, stage: Stage, place: int, rng: np.random.Generator, step: int
    ) -> tuple[Tensor, list[str], list[Tensor]]:
        return self._changed(stage, place, rng, ["before"])

    def _combine(
        self, stage: Stage, place: int, rng: np.random.Generator, step: int
    ) -> tuple[Tensor, list[str], list[Tensor]]:
        return self._changed(stage, place, rng, ["before", "second"])

    def _changed(
        self, stage: Stage, place: int, rng: np.random.Generator, references: list[Part]
    ) -> tuple[Tensor, list[str], list[Tensor]]:
        size = SIZES[stage.kind][place]
        kind = "reference" if stage.kind == "full" else stage.kind
        all_numbers, after = self._of(stage, stage.kind, size, "after")
        second_numbers, second = self._of(stage, kind, SIZES[kind][place], "second")
        numbers = second_numbers if len(references) == 2 else sorted(set(all_numbers) - set(second_numbers))
        chosen = [numbers[int(i)] for i in rng.integers(len(numbers), size=stage.batch)]
        rows = np.array([all_numbers.index(number) for number in chosen])
        given = [self._normal(self._of(stage, kind, SIZES[kind][place], "before")[1], rows)]
        if len(references) == 2:
            given.append(self._normal(second, np.array([second_numbers.index(number) for number in chosen])))
        return self._normal(after, rows), [train_edit(number).instruction for number in chosen], given

    def _normal(self, latents: Tensor, rows: np.ndarray) -> Tensor:
        """Some rows as the transformer takes them."""
        norm = self.latents.codec.bn
        mean, variance = norm.running_mean, norm.running_var  # type: ignore[union-attr]
        deviation = torch.sqrt(variance + norm.eps)  # type: ignore[union-attr,operator]
        chosen = patchify(latents[torch.from_numpy(rows)].float().to(device()))
        return (chosen - mean[:, None, None]) / deviation[:, None, None]  # type: ignore[index]

    def _of(self, stage: Stage, kind: str, size: tuple[int, int], part: Part) -> tuple[list[int], Tensor]:
        key = (kind, size, part)
        if key not in self._open:
            self._open[key] = self.latents.of(kind, size, stage.pictures, part)
        return self._open[key]


def train_transformer(
    folder: Path, name: str, network: nn.Module, training: TransformerTraining, schedule: Schedule, until: float
) -> Run:
    """The transformer's run, as far as it got."""
    run = Run(folder / f"{name}.pt", network.to(device()), schedule)
    run.train(lambda step: training.loss(run.model, step), until)
    return run
