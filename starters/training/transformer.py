"""starter-beta's transformer: rectified flow, from noise, a prompt and up to two reference pictures to latents.

All but tiles are learned at exactly the noise levels that drawing in four steps visits, a cheap way to few steps.
Beside the picture, the network is asked what its tokens show (understanding.py).
"""

import math
import re
from pathlib import Path
from typing import Final

import numpy as np
import torch
from diffusers import Flux2KleinPipeline, Flux2Transformer2DModel
from PIL import Image
from torch import Tensor, nn

from pipelines.catalog.plan import fitting
from starters.architectures import BETA_SHIFT
from starters.tokens import LENGTH
from starters.training.cosines import DRAWN_PX, cosines_of, latents_of, tokens_of
from starters.training.loop import Run, Schedule, device, fast_math
from starters.training.pictures import FULL, crowded_scene, rng_for, train_edit, train_scene
from starters.training.stages import Size, Stage, standing_out, train_caption, unlike
from starters.training.texts import Encoder
from starters.training.understanding import Understanding, covered, misunderstood, shown
from starters.world.render import render
from starters.world.scene import Scene

# A drawing takes half of an edit's time, and all in it is new: to draw is the same skill, and what edits lack most. A
# second reference doubles the time.
MIX: Final = {"draw": 0.45, "edit": 0.47, "combine": 0.03, "tile": 0.05}
TILE_NOISE: Final = 0.3  # before the shift: up to which the second pass of a 2K or 4K picture adds noise
STEPS_DRAWN: Final = 4
TOKEN_PX: Final = 64
CLOSE: Final = 0.1  # errors of tokens that count by their squares; larger ones count by their lengths
FAR: Final = 0.25  # in latents: about a third of the way from black to white
CHANGES: Final = 3.0  # how much all that an edit changes counts, where 1 is the picture: to copy is easily learned
FEWEST: Final = 0.06  # of the places: where fewer change, each of them counts no more
EACH_OBJECT: Final = 0.6  # how much an object counts: by its tokens alone, small ones were drawn as haze
OWN: Final = 4  # every so many references are what the network itself draws: that is what people have it edit
ASKED: Final = 0.01  # how much it counts what was misunderstood: a third of the gradient; with more, little is drawn
SMALLER: Final = 5 * ((640, 640), (768, 640), (640, 768), (768, 768))
NATIVE_PX: Final = 1 << 20  # larger references the klein pipeline reduces to as many: tokens would not lie on tokens
SCORING: Final = re.compile(r"norm_(added_)?[qk]\.")  # in the names of weights
Positions = Tensor  # (tokens, 4): picture, row, column, place in the text


def inference_sigmas(steps: int) -> Tensor:
    """The noise levels that a drawing of so many steps visits, from 1 down."""
    return shifted(torch.linspace(1, 1 / steps, steps))


def shifted(even: Tensor) -> Tensor:
    """Noise levels as the scheduler shifts them, towards more noise."""
    return BETA_SHIFT * even / (1 + (BETA_SHIFT - 1) * even)


def drawn_sizes(stage: Stage) -> list[Size]:
    """What a stage draws: every full size as the server has it drawn, a megapixel at most, and reduced by the stage.

    The last stage draws smaller pictures as often: they take less than half the time and say as much.
    """
    fitted = tuple(fitting(*size, NATIVE_PX, TOKEN_PX * stage.spread) for size in FULL)
    smaller = SMALLER if stage.kind == "full" else ()
    return stage.sizes(fitted + smaller, TOKEN_PX, shortest=4)


@torch.no_grad()
def set_to_pass(network: Flux2Transformer2DModel) -> Flux2Transformer2DModel:
    """Begin with the velocity of noise without a picture: what comes in goes out, and no layer adds anything yet.

    The network is hardly wider than a token, and would take long to learn that. Layers begin silent as in DiT (Peebles
    and Xie, 2022): zero are the weights that modulate them.
    """
    enter, leave = network.x_embedder, network.proj_out
    directions = torch.randn(enter.weight.shape)
    directions -= directions.mean(0)  # what all have in common, the last norm takes away
    directions = torch.linalg.qr(directions)[0]
    width, token = directions.shape
    enter.weight.copy_(directions)
    leave.weight.copy_((token / width) ** 0.5 * directions.T)
    modulations = (
        network.double_stream_modulation_img, network.double_stream_modulation_txt, network.single_stream_modulation,
        network.norm_out,
    )  # fmt: skip
    for modulation in modulations:
        modulation.linear.weight.zero_()
    return network


@torch.no_grad()
def sharpened(network: nn.Module, before: Stage, after: Stage) -> nn.Module:
    """Attention that picks as well among the tokens of a later stage as it did among those of the one before.

    Queries and keys have a fixed length (their norms), so that a place which stands out among a hundred tokens is
    drowned by five hundred. Scores grow with the logarithm of the count (Chiang and Cholak, 2022).
    """
    few, many = (LENGTH + 2 * NATIVE_PX // (TOKEN_PX * stage.spread) ** 2 for stage in (before, after))
    for name, weight in network.named_parameters():
        if SCORING.search(name):
            weight.mul_((math.log(many) / math.log(few)) ** 0.5)  # each of the two that are multiplied
    return network


class TransformerTraining:
    """The losses of starter-beta. `norm` has the statistics of its codec's latents."""

    def __init__(self, norm: nn.BatchNorm2d, encoder: Encoder, stage: Stage) -> None:
        self.norm, self.encoder, self.batch = norm.to(device()), encoder, stage.batch
        self.spread, self.sizes = stage.spread, drawn_sizes(stage)
        self.asks = {"draw": self._draw, "edit": self._edit, "combine": self._combine, "tile": self._draw}
        self.tasks = MIX if stage.kind == "full" else {**MIX, "draw": MIX["draw"] + MIX["tile"], "tile": 0.0}
        self.own = self.batch // OWN if stage.kind == "full" else 0

    def loss(self, model: Understanding, step: int) -> Tensor:
        """The weighted error of the picture that follows from the predicted velocity, and what was misunderstood.

        The velocity's own error would count most where there is next to no noise, and least where contents are decided.
        """
        rng = rng_for(8, step)
        task = str(rng.choice(list(self.tasks), p=list(self.tasks.values())))
        size = self.sizes[int(rng.integers(len(self.sizes)))]
        scenes, texts, given = self.asks[task](step * self.batch)
        said, tile = self._said(texts), task == "tile"
        references = [self._tokens(reference, size) for reference in given]
        if tile:
            clean, noisy, sigmas = self._tiles(scenes, size, rng)
            counts = standing_out(clean, FAR)
        else:
            clean = self._tokens(scenes, size)
            counts = self._counts(clean, scenes, references)
            if given:
                references[0] = self._partly_own(model.network, references[0], given[0], step * self.batch)
            noisy, sigmas = self._under_way(model.network, torch.randn_like(clean), references, said)
        looked_at = given or [[crowded_scene(step * self.batch + i) for i in range(self.batch)]]
        rows, columns = clean.shape[2:]
        with fast_math(device()):
            drawn, of_picture, of_seen = model(rows * columns, **self._inputs([noisy, *references], sigmas, said))
            if not given:
                seen = [noisy[:, :, :0], self._tokens(looked_at[0], size)]
                of_seen = model.look(**self._inputs(seen, sigmas, said))
        showed = shown(looked_at, columns, rows)
        wrongly = misunderstood(of_seen, showed)
        if not tile:  # a cutting: what stands where, its scene doesn't say
            before = {asked: answers[:, : rows * columns] for asked, answers in showed.items()} if given else None
            wrongly = wrongly + misunderstood(of_picture, shown([scenes], columns, rows), before)
        wrong = _in_a_row(noisy - clean)
        errors: Tensor = sigmas[:, None, None] * drawn[:, : wrong.shape[1]].float() - wrong
        return (_in_a_row(counts) * shortened(errors)).mean() + ASKED * wrongly

    def _counts(self, clean: Tensor, scenes: list[Scene], references: list[Tensor]) -> Tensor:
        """How much each place of whole pictures (n, c, h, w) counts, (n, 1, h, w)."""
        rows, columns = clean.shape[2:]
        counts = standing_out(clean, FAR) + EACH_OBJECT * each_object(scenes, columns, rows).to(clean.device)
        return counts + changing(clean, references[0]) if references else counts

    def _partly_own(
        self, network: Flux2Transformer2DModel, references: Tensor, scenes: list[Scene], first: int
    ) -> Tensor:
        """The same references, the last of them as the network draws their scenes from words.

        Its drawings are softer than the renderer's. Taught with those alone, it recoloured half of a boat of its own.
        """
        if not self.own:
            return references
        kept, others = references[: -self.own], references[-self.own :]
        texts = [train_caption(scene, 11, first + i) for i, scene in enumerate(scenes[-self.own :])]
        return torch.cat([kept, self._in_one_step(network, torch.randn_like(others), [], self._said(texts))])

    @torch.no_grad()
    def _under_way(
        self, network: Flux2Transformer2DModel, noise: Tensor, references: list[Tensor], said: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Pictures as the network's own steps leave them: half with none made, others with one, two, or three.

        Words and references all but decide a picture, so every step can be told what is right, and learns to mend what
        those before it got wrong (Huang et al., 2025, "Self Forcing"). Taught with noise over the right picture, which
        shows the answer, steps after the first changed nothing. Here the first one's picture stands for those of the
        next two, which hardly differ from it. Changes `noise`.
        """
        sigmas = inference_sigmas(STEPS_DRAWN).to(noise.device)
        place = torch.arange(len(noise), device=noise.device)
        at = sigmas[torch.where(place % 2 == 0, 0, 1 + place // 2 % (STEPS_DRAWN - 1))]
        if len(noise) == 1:
            return noise, at
        pure = noise[1::2]
        drawn = self._in_one_step(network, pure, [reference[1::2] for reference in references], said[1::2])
        noise[1::2] = torch.lerp(drawn, pure, at[1::2, None, None, None])
        return noise, at

    @torch.no_grad()
    def _in_one_step(
        self, network: Flux2Transformer2DModel, noise: Tensor, references: list[Tensor], said: Tensor
    ) -> Tensor:
        """The pictures (n, c, h, w) that the network sees in pure noise."""
        with fast_math(device()):
            inputs = self._inputs([noise, *references], torch.ones(len(noise), device=noise.device), said)
            velocity: Tensor = network(**inputs, return_dict=False)[0][:, : noise.shape[2] * noise.shape[3]]
        return noise - velocity.float().transpose(1, 2).reshape(noise.shape)

    @torch.no_grad()
    def _said(self, texts: list[str]) -> Tensor:
        """What the pipeline hands the transformer of the texts: the three layers that it reads agree."""
        with fast_math(device()):
            once: Tensor = self.encoder(self.encoder.tokens(texts))
        return once.repeat(1, 1, 3)

    def _tokens(self, scenes: list[Scene], size: Size) -> Tensor:
        return tokens_of(torch.stack([latents_of(scene, *size) for scene in scenes]).to(device()), self.norm)

    def _tiles(self, scenes: list[Scene], size: Size, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Cuttings of enlarged scenes as they should be, as the second pass of a large picture begins, and its noise.

        They begin between what they should be and as soft as what was drawn smaller.
        """
        times = int(rng.integers(2, 4))
        width, height = size[0] // DRAWN_PX, size[1] // DRAWN_PX
        left, top = int(rng.integers((times - 1) * width + 1)), int(rng.integers((times - 1) * height + 1))
        box = (left, top, left + width, top + height)
        cuttings, soft = [], []
        for scene in scenes:
            whole = render(scene, times * width, times * height)
            small = render(scene, width, height).resize(whole.size, Image.Resampling.BICUBIC)
            cuttings.append(cosines_of(whole.crop(box)))
            soft.append(torch.lerp(cuttings[-1], cosines_of(small.crop(box)), float(rng.random())))
        clean, start = (tokens_of(torch.stack(latents).to(device()), self.norm) for latents in (cuttings, soft))
        sigmas = shifted(TILE_NOISE * torch.rand(len(clean))).to(clean.device)
        return clean, torch.lerp(start, torch.randn_like(clean), sigmas[:, None, None, None]), sigmas

    def _inputs(self, pictures: list[Tensor], sigmas: Tensor, said: Tensor) -> dict[str, Tensor]:
        tokens, positions = self._pack(pictures)
        return {
            "hidden_states": tokens,
            "timestep": sigmas,
            "encoder_hidden_states": said,
            "txt_ids": Flux2KleinPipeline._prepare_text_ids(said).to(tokens.device),
            "img_ids": positions.to(tokens.device),
        }

    def _pack(self, pictures: list[Tensor]) -> tuple[Tensor, Positions]:
        """Tokens and positions of the picture and its references, as the pipeline counts them.

        Small pictures leave positions out: theirs are the middles of the same places in a full-sized one.
        """
        noisy, *references = pictures
        positions = [Flux2KleinPipeline._prepare_latent_ids(noisy)]
        if references:
            ids = Flux2KleinPipeline._prepare_image_ids([reference[:1] for reference in references])
            positions.append(ids.expand(len(noisy), -1, -1))
        spread = torch.tensor((1, self.spread, self.spread, 1))
        middles = torch.cat([ids.cpu() * spread for ids in positions], dim=1) + (spread - 1) / 2
        return torch.cat([_in_a_row(picture) for picture in pictures], dim=1), middles

    def _draw(self, first: int) -> tuple[list[Scene], list[str], list[list[Scene]]]:
        scenes = [(crowded_scene if i % 2 else train_scene)(first + i) for i in range(self.batch)]
        return scenes, [train_caption(scene, 9, first + i) for i, scene in enumerate(scenes)], []

    def _edit(self, first: int) -> tuple[list[Scene], list[str], list[list[Scene]]]:
        edits = [train_edit(5 * (first + i) + 1) for i in range(self.batch)]  # those with one picture
        return [edit.after for edit in edits], [edit.instruction for edit in edits], [[edit.before for edit in edits]]

    def _combine(self, first: int) -> tuple[list[Scene], list[str], list[list[Scene]]]:
        edits = [train_edit(5 * (first + i)) for i in range(self.batch)]  # those with two
        second = [edit.reference for edit in edits if edit.reference is not None]
        befores = [edit.before for edit in edits]
        return [edit.after for edit in edits], [edit.instruction for edit in edits], [befores, second]


def changing(after: Tensor, before: Tensor) -> Tensor:
    """How much more each place of (n, c, h, w) counts for what an edit changes there, (n, 1, h, w).

    All that changes counts the same together, a boat's colour as much as a sky: with the same weight everywhere, skies
    were learned and boats were not.
    """
    changed = unlike(after, before, FAR)
    return CHANGES * changed / changed.mean((1, 2, 3), keepdim=True).clamp(min=FEWEST)


def each_object(scenes: list[Scene], columns: int, rows: int) -> Tensor:
    """How much more each place counts for the objects there, (n, 1, rows, columns): every object 1 on average."""
    counts = torch.zeros(len(scenes), 1, rows, columns)
    for scene, count in zip(scenes, counts, strict=True):
        for thing in scene.things:
            share = torch.from_numpy(covered(scene, thing, columns, rows)).float()
            count += share / share.mean().clamp(min=1 / share.numel())
    return counts


def shortened(errors: Tensor) -> Tensor:
    """What the errors of tokens (n, tokens, channels) count, (n, tokens, 1), by the pseudo-Huber function.

    Where the network cannot tell which of two things is right, the mean of both has the least square error, and is seen
    as haze. Lengths are least where it decides (as in Song and Dhariwal, 2023, "Improved techniques").
    """
    squares = errors.square().mean(2, keepdim=True)
    return 2 * CLOSE * ((squares + CLOSE**2).sqrt() - CLOSE)


def _in_a_row(values: Tensor) -> Tensor:
    """(n, c, h, w) as (n, h * w, c)."""
    return values.flatten(2).transpose(1, 2)


def train_transformer(
    folder: Path, name: str, model: Understanding, training: TransformerTraining, schedule: Schedule, until: float
) -> Run:
    """The transformer's run, as far as it got."""
    run = Run(folder / f"{name}.pt", model.to(device()), schedule)
    run.train(lambda step: training.loss(model, step), until)
    return run
