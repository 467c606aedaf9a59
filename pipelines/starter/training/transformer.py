"""starter-beta's transformer: rectified flow, from noise, a prompt and up to two reference pictures to latents.

Most of every batch is at exactly the noise levels that drawing in four steps visits, which is a cheap way to few steps.
"""

from pathlib import Path
from typing import Final

import torch
from diffusers import Flux2KleinPipeline, Flux2Transformer2DModel
from torch import Tensor, nn

from pipelines.starter.architectures import BETA_SHIFT
from pipelines.starter.training.cosines import latents_of, tokens_of
from pipelines.starter.training.loop import Run, Schedule, device, fast_math
from pipelines.starter.training.pictures import FULL, rng_for, train_edit, train_scene
from pipelines.starter.training.stages import Size, Stage, standing_out, train_caption, unlike
from pipelines.starter.training.texts import Encoder
from pipelines.starter.world.scene import Scene

MIX: Final = {"draw": 0.55, "edit": 0.37, "combine": 0.08}  # a second reference doubles the time
STEPS_DRAWN: Final = 4
TOKEN_PX: Final = 64
FAR: Final = 0.25  # in latents: about a third of the way from black to white
CHANGES: Final = 6.0  # how much more a place counts that an edit changes: to copy the rest is easily learned
PIXELS_OF_A_REFERENCE: Final = 1 << 20  # larger ones the klein pipeline reduces to as many
Positions = Tensor  # (tokens, 4): picture, row, column, place in the text


def inference_sigmas(steps: int) -> Tensor:
    """The noise levels that a drawing of so many steps visits, from 1 down."""
    return shifted(torch.linspace(1, 1 / steps, steps))


def shifted(even: Tensor) -> Tensor:
    """Noise levels as the scheduler shifts them, towards more noise."""
    return BETA_SHIFT * even / (1 + (BETA_SHIFT - 1) * even)


def reference_size(width: int, height: int) -> Size:
    """What the klein pipeline makes of a reference of this size."""
    scale = min(1.0, (PIXELS_OF_A_REFERENCE / (width * height)) ** 0.5)
    return int(width * scale) // TOKEN_PX * TOKEN_PX, int(height * scale) // TOKEN_PX * TOKEN_PX


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


class TransformerTraining:
    """The losses of starter-beta. `norm` has the statistics of its codec's latents."""

    def __init__(self, norm: nn.BatchNorm2d, encoder: Encoder, stage: Stage) -> None:
        self.norm, self.encoder, self.batch = norm.to(device()), encoder, stage.batch
        self.spread, self.sizes = stage.spread, stage.sizes(FULL, TOKEN_PX, shortest=4)
        self.asks = {"draw": self._draw, "edit": self._edit, "combine": self._combine}

    def loss(self, network: nn.Module, step: int) -> Tensor:
        """The weighted error of the picture that follows from the predicted velocity.

        The velocity's own error would count most where there is next to no noise, and least where contents are decided.
        """
        rng = rng_for(8, step)
        task = str(rng.choice(list(MIX), p=list(MIX.values())))
        size = self.sizes[int(rng.integers(len(self.sizes)))]
        scenes, texts, given = self.asks[task](step * self.batch)
        clean = self._tokens(scenes, size)
        references = [self._tokens(reference, reference_size(*size)) for reference in given]
        sigmas = self._sigmas(len(clean)).to(clean.device)
        noise = torch.randn_like(clean)
        noisy = torch.lerp(clean, noise, sigmas[:, None, None, None])
        tokens, positions = self._pack([noisy, *references])
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
        counts = standing_out(clean, FAR)
        if given:
            counts = counts + CHANGES * unlike(clean, self._tokens(given[0], size), FAR)
        counts = counts.flatten(2).transpose(1, 2)
        errors: Tensor = sigmas[:, None, None] * (drawn[:, : wanted.shape[1]].float() - wanted)
        return (counts * errors.square()).mean()

    def _sigmas(self, batch: int) -> Tensor:
        visited = inference_sigmas(STEPS_DRAWN)[torch.randint(STEPS_DRAWN, (batch,))]
        return torch.where(torch.arange(batch) % 4 > 0, visited, shifted(torch.rand(batch)))

    def _tokens(self, scenes: list[Scene], size: Size) -> Tensor:
        return tokens_of(torch.stack([latents_of(scene, *size) for scene in scenes]).to(device()), self.norm)

    def _pack(self, pictures: list[Tensor]) -> tuple[Tensor, Positions]:
        """Tokens and positions of the picture and its references, as the pipeline counts them.

        Small pictures leave positions out, so that they mean the same places as a full-sized one's. Of references above
        a megapixel that is not so, since the pipeline reduces them.
        """
        noisy, *references = pictures
        positions = [Flux2KleinPipeline._prepare_latent_ids(noisy)]
        if references:
            ids = Flux2KleinPipeline._prepare_image_ids([reference[:1] for reference in references])
            positions.append(ids.expand(len(noisy), -1, -1))
        spread = torch.tensor((1, self.spread, self.spread, 1))
        tokens = torch.cat([picture.flatten(2).transpose(1, 2) for picture in pictures], dim=1)
        return tokens, torch.cat([ids.cpu() * spread for ids in positions], dim=1)

    def _draw(self, first: int) -> tuple[list[Scene], list[str], list[list[Scene]]]:
        scenes = [train_scene(first + i) for i in range(self.batch)]
        return scenes, [train_caption(scene, 9, first + i) for i, scene in enumerate(scenes)], []

    def _edit(self, first: int) -> tuple[list[Scene], list[str], list[list[Scene]]]:
        edits = [train_edit(5 * (first + i) + 1) for i in range(self.batch)]  # those with one picture
        return [edit.after for edit in edits], [edit.instruction for edit in edits], [[edit.before for edit in edits]]

    def _combine(self, first: int) -> tuple[list[Scene], list[str], list[list[Scene]]]:
        edits = [train_edit(5 * (first + i)) for i in range(self.batch)]  # those with two
        second = [edit.reference for edit in edits if edit.reference is not None]
        befores = [edit.before for edit in edits]
        return [edit.after for edit in edits], [edit.instruction for edit in edits], [befores, second]


def train_transformer(
    folder: Path, name: str, network: nn.Module, training: TransformerTraining, schedule: Schedule, until: float
) -> Run:
    """The transformer's run, as far as it got."""
    run = Run(folder / f"{name}.pt", network.to(device()), schedule)
    run.train(lambda step: training.loss(run.model, step), until)
    return run
