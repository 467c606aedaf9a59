"""Training of starter-beta's transformer: rectified flow from noise, a prompt and up to two references to latents.

All tasks but tiles train at exactly the noise levels of four-step inference, a cheap way to few steps. An auxiliary
loss probes what the tokens show (token_probes.py).
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

from pipelines.catalog.plan import fit_to_area
from starters.architectures import BETA_SHIFT
from starters.tokens import LENGTH
from starters.training.dataset import FULL, crowded_scene, rng_for, train_edit, train_scene
from starters.training.dct_codec import REDUCTION, dct_latents, latents_of, tokens_of
from starters.training.loop import Run, Schedule, device, mixed_precision
from starters.training.stages import Size, Stage, contrast_weights, distance, train_caption
from starters.training.text_encoder import TextEncoder
from starters.training.token_checks import ProbedTransformer, check_labels, check_loss, coverage
from starters.world.render import render
from starters.world.scene import Scene

# Text to image takes half of an edit's time and teaches the same skill, since everything in such an image is new. A
# second reference doubles the time.
TASK_MIX: Final = {"draw": 0.45, "edit": 0.47, "combine": 0.03, "tile": 0.05}
TILE_NOISE: Final = 0.3  # the highest noise level, before the shift, of the second pass of a 2K or 4K image
INFERENCE_STEPS: Final = 4
TOKEN_PX: Final = 64
HUBER_DELTA: Final = 0.1  # smaller errors count by their squares, larger ones by their lengths
FAR: Final = 0.25  # in latents: about a third of the way from black to white
EDIT_WEIGHT: Final = 3.0  # of all that an edit changes, where 1 is the image
MIN_CHANGED_SHARE: Final = 0.06  # of the places; below it, the weight of one place stops growing
OBJECT_WEIGHT: Final = 0.6  # of each object; without it, small objects were drawn as haze
SELF_GENERATED_EVERY: Final = 4  # one reference of so many is the network's own drawing, as in a chain of edits
CHECK_WEIGHT: Final = 0.01  # a third of the gradient; with more, the network does not learn to draw
REDUCED_SIZES: Final = 5 * ((640, 640), (768, 640), (640, 768), (768, 768))
NATIVE_AREA_PX: Final = 1 << 20  # the klein pipeline downscales larger references, and tokens would not align
QK_NORMS: Final = re.compile(r"norm_(added_)?[qk]\.")  # in the names of weights
Positions = Tensor  # (tokens, 4): image, row, column, place in the text


def inference_sigmas(steps: int) -> Tensor:
    """The noise levels of inference in so many steps, from 1 down."""
    return shifted(torch.linspace(1, 1 / steps, steps))


def shifted(even: Tensor) -> Tensor:
    """Noise levels as the scheduler shifts them, towards more noise."""
    return BETA_SHIFT * even / (1 + (BETA_SHIFT - 1) * even)


def stage_sizes(stage: Stage) -> list[Size]:
    """The sizes of a stage: every full size as the server draws it, a megapixel at most, downscaled by the stage.

    The last stage trains on smaller images as often: they take less than half the time and teach as much.
    """
    fitted = tuple(fit_to_area(*size, NATIVE_AREA_PX, TOKEN_PX * stage.downscale) for size in FULL)
    smaller = REDUCED_SIZES if stage.kind == "full" else ()
    return stage.sizes(fitted + smaller, TOKEN_PX, min_multiples=4)


@torch.no_grad()
def init_identity(network: Flux2Transformer2DModel) -> Flux2Transformer2DModel:
    """Initialise the network as the identity: it predicts the velocity of pure noise, and no layer adds anything.

    The network is hardly wider than a token, and would take long to learn that. As in DiT (Peebles and Xie, 2022), the
    weights that modulate the layers are zero.
    """
    proj_in, proj_out = network.x_embedder, network.proj_out
    directions = torch.randn(proj_in.weight.shape)
    directions -= directions.mean(0)  # the last norm removes the mean
    directions = torch.linalg.qr(directions)[0]
    width, token = directions.shape
    proj_in.weight.copy_(directions)
    proj_out.weight.copy_((token / width) ** 0.5 * directions.T)
    modulations = (
        network.double_stream_modulation_img, network.double_stream_modulation_txt, network.single_stream_modulation,
        network.norm_out,
    )  # fmt: skip
    for modulation in modulations:
        modulation.linear.weight.zero_()
    return network


@torch.no_grad()
def rescale_attention(network: nn.Module, before: Stage, after: Stage) -> nn.Module:
    """Keep attention as sharp among the more numerous tokens of a later stage.

    Queries and keys have a fixed length (their norms), so attention to one token of a hundred is diluted among five
    hundred. The scores are scaled by the logarithm of the count (Chiang and Cholak, 2022).
    """
    few, many = (LENGTH + 2 * NATIVE_AREA_PX // (TOKEN_PX * stage.downscale) ** 2 for stage in (before, after))
    for name, weight in network.named_parameters():
        if QK_NORMS.search(name):
            weight.mul_((math.log(many) / math.log(few)) ** 0.5)  # queries and keys each get the square root
    return network


class TransformerTraining:
    """The losses of starter-beta. `norm` has the statistics of its codec's latents."""

    def __init__(self, norm: nn.BatchNorm2d, encoder: TextEncoder, stage: Stage) -> None:
        self.norm, self.encoder, self.batch = norm.to(device()), encoder, stage.batch
        self.downscale, self.sizes = stage.downscale, stage_sizes(stage)
        self.samplers = {"draw": self._draw, "edit": self._edit, "combine": self._combine, "tile": self._draw}
        without_tiles = {**TASK_MIX, "draw": TASK_MIX["draw"] + TASK_MIX["tile"], "tile": 0.0}
        self.tasks = TASK_MIX if stage.kind == "full" else without_tiles
        self.self_generated = self.batch // SELF_GENERATED_EVERY if stage.kind == "full" else 0

    def loss(self, model: ProbedTransformer, step: int) -> Tensor:
        """The weighted error of the image that follows from the predicted velocity, plus the probe loss.

        The velocity's own error would weigh most where there is little noise, and least where content is decided.
        """
        rng = rng_for(8, step)
        task = str(rng.choice(list(self.tasks), p=list(self.tasks.values())))
        size = self.sizes[int(rng.integers(len(self.sizes)))]
        scenes, texts, reference_scenes = self.samplers[task](step * self.batch)
        prompt, tile = self._encode_texts(texts), task == "tile"
        references = [self._tokens(reference, size) for reference in reference_scenes]
        if tile:
            clean, noisy, sigmas = self._tiles(scenes, size, rng)
            weights = contrast_weights(clean, FAR)
        else:
            clean = self._tokens(scenes, size)
            weights = self._loss_weights(clean, scenes, references)
            if reference_scenes:
                references[0] = self._mix_in_self_generated(
                    model.network, references[0], reference_scenes[0], step * self.batch
                )
            noisy, sigmas = self._rollout(model.network, torch.randn_like(clean), references, prompt)
        probed_scenes = reference_scenes or [[crowded_scene(step * self.batch + i) for i in range(self.batch)]]
        rows, columns = clean.shape[2:]
        with mixed_precision(device()):
            predicted, image_logits, reference_logits = model(
                rows * columns, **self._inputs([noisy, *references], sigmas, prompt)
            )
            if not reference_scenes:
                only_references = [noisy[:, :, :0], self._tokens(probed_scenes[0], size)]
                reference_logits = model.check_references(**self._inputs(only_references, sigmas, prompt))
        labels = check_labels(probed_scenes, columns, rows)
        checks = check_loss(reference_logits, labels)
        if not tile:  # a crop: the scene does not tell what stands where in it
            before = (
                {question: answers[:, : rows * columns] for question, answers in labels.items()}
                if reference_scenes
                else None
            )
            checks = checks + check_loss(image_logits, check_labels([scenes], columns, rows), before)
        wrong = _as_sequence(noisy - clean)
        errors: Tensor = sigmas[:, None, None] * predicted[:, : wrong.shape[1]].float() - wrong
        return (_as_sequence(weights) * pseudo_huber(errors)).mean() + CHECK_WEIGHT * checks

    def _loss_weights(self, clean: Tensor, scenes: list[Scene], references: list[Tensor]) -> Tensor:
        """Loss weights (n, 1, h, w) of whole images (n, c, h, w)."""
        rows, columns = clean.shape[2:]
        weights = contrast_weights(clean, FAR) + OBJECT_WEIGHT * object_weights(scenes, columns, rows).to(clean.device)
        return weights + edit_weights(clean, references[0]) if references else weights

    def _mix_in_self_generated(
        self, network: Flux2Transformer2DModel, references: Tensor, scenes: list[Scene], first: int
    ) -> Tensor:
        """The same references, with the last of them replaced by the network's own drawings of their scenes.

        These are softer than the renderer's. Trained on rendered references alone, the network recoloured only half of
        a boat that it had drawn itself.
        """
        if not self.self_generated:
            return references
        rendered, replaced = references[: -self.self_generated], references[-self.self_generated :]
        texts = [train_caption(scene, 11, first + i) for i, scene in enumerate(scenes[-self.self_generated :])]
        return torch.cat(
            [rendered, self._predict_x0(network, torch.randn_like(replaced), [], self._encode_texts(texts))]
        )

    @torch.no_grad()
    def _rollout(
        self, network: Flux2Transformer2DModel, noise: Tensor, references: list[Tensor], prompt: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Noisy images from the network's own steps, and their noise levels: half after none, others after 1 to 3.

        Prompt and references nearly decide an image, so every step has a target, and learns to correct the steps
        before it (Huang et al., 2025, "Self Forcing"). Trained with noise over the right image, which shows the
        answer, steps after the first changed nothing. Here the prediction of the first step stands for those of the
        next two, which hardly differ from it. Changes `noise` in place.
        """
        sigmas = inference_sigmas(INFERENCE_STEPS).to(noise.device)
        row = torch.arange(len(noise), device=noise.device)
        levels = sigmas[torch.where(row % 2 == 0, 0, 1 + row // 2 % (INFERENCE_STEPS - 1))]
        if len(noise) == 1:
            return noise, levels
        pure_noise = noise[1::2]
        predicted = self._predict_x0(network, pure_noise, [reference[1::2] for reference in references], prompt[1::2])
        noise[1::2] = torch.lerp(predicted, pure_noise, levels[1::2, None, None, None])
        return noise, levels

    @torch.no_grad()
    def _predict_x0(
        self, network: Flux2Transformer2DModel, noise: Tensor, references: list[Tensor], prompt: Tensor
    ) -> Tensor:
        """The clean latents (n, c, h, w) that the network predicts from pure noise."""
        with mixed_precision(device()):
            inputs = self._inputs([noise, *references], torch.ones(len(noise), device=noise.device), prompt)
            velocity: Tensor = network(**inputs, return_dict=False)[0][:, : noise.shape[2] * noise.shape[3]]
        return noise - velocity.float().transpose(1, 2).reshape(noise.shape)

    @torch.no_grad()
    def _encode_texts(self, texts: list[str]) -> Tensor:
        """The prompt embeddings that the pipeline passes: the three layers that it reads are the same here."""
        with mixed_precision(device()):
            hidden: Tensor = self.encoder(self.encoder.tokens(texts))
        return hidden.repeat(1, 1, 3)

    def _tokens(self, scenes: list[Scene], size: Size) -> Tensor:
        return tokens_of(torch.stack([latents_of(scene, *size) for scene in scenes]).to(device()), self.norm)

    def _tiles(self, scenes: list[Scene], size: Size, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Crops of upscaled scenes as in the second pass of a large image: clean, noisy, and their noise levels.

        The noisy ones start between sharp and as soft as an upscaled image.
        """
        times = int(rng.integers(2, 4))
        width, height = size[0] // REDUCTION, size[1] // REDUCTION
        left, top = int(rng.integers((times - 1) * width + 1)), int(rng.integers((times - 1) * height + 1))
        box = (left, top, left + width, top + height)
        crops, soft = [], []
        for scene in scenes:
            full = render(scene, times * width, times * height)
            small = render(scene, width, height).resize(full.size, Image.Resampling.BICUBIC)
            crops.append(dct_latents(full.crop(box)))
            soft.append(torch.lerp(crops[-1], dct_latents(small.crop(box)), float(rng.random())))
        clean, start = (tokens_of(torch.stack(latents).to(device()), self.norm) for latents in (crops, soft))
        sigmas = shifted(TILE_NOISE * torch.rand(len(clean))).to(clean.device)
        return clean, torch.lerp(start, torch.randn_like(clean), sigmas[:, None, None, None]), sigmas

    def _inputs(self, images: list[Tensor], sigmas: Tensor, prompt: Tensor) -> dict[str, Tensor]:
        tokens, positions = self._pack(images)
        return {
            "hidden_states": tokens,
            "timestep": sigmas,
            "encoder_hidden_states": prompt,
            "txt_ids": Flux2KleinPipeline._prepare_text_ids(prompt).to(tokens.device),
            "img_ids": positions.to(tokens.device),
        }

    def _pack(self, images: list[Tensor]) -> tuple[Tensor, Positions]:
        """Tokens and positions of the image and its references, numbered as in the pipeline.

        Tokens of downscaled images get the positions of their centres in a full-sized one.
        """
        noisy, *references = images
        positions = [Flux2KleinPipeline._prepare_latent_ids(noisy)]
        if references:
            ids = Flux2KleinPipeline._prepare_image_ids([reference[:1] for reference in references])
            positions.append(ids.expand(len(noisy), -1, -1))
        downscale = torch.tensor((1, self.downscale, self.downscale, 1))
        centres = torch.cat([ids.cpu() * downscale for ids in positions], dim=1) + (downscale - 1) / 2
        return torch.cat([_as_sequence(image) for image in images], dim=1), centres

    def _draw(self, first: int) -> tuple[list[Scene], list[str], list[list[Scene]]]:
        scenes = [(crowded_scene if i % 2 else train_scene)(first + i) for i in range(self.batch)]
        return scenes, [train_caption(scene, 9, first + i) for i, scene in enumerate(scenes)], []

    def _edit(self, first: int) -> tuple[list[Scene], list[str], list[list[Scene]]]:
        edits = [train_edit(5 * (first + i) + 1) for i in range(self.batch)]  # the edits with one image
        return [edit.after for edit in edits], [edit.instruction for edit in edits], [[edit.before for edit in edits]]

    def _combine(self, first: int) -> tuple[list[Scene], list[str], list[list[Scene]]]:
        edits = [train_edit(5 * (first + i)) for i in range(self.batch)]  # the edits with two images
        second = [edit.reference for edit in edits if edit.reference is not None]
        befores = [edit.before for edit in edits]
        return [edit.after for edit in edits], [edit.instruction for edit in edits], [befores, second]


def edit_weights(after: Tensor, before: Tensor) -> Tensor:
    """Extra loss weights (n, 1, h, w) where an edit changes latents (n, c, h, w).

    The sum is the same for every edit, so that a boat's colour weighs as much as a sky: with the same weight
    everywhere, skies were learned and boats were not.
    """
    changed = distance(after, before, FAR)
    return EDIT_WEIGHT * changed / changed.mean((1, 2, 3), keepdim=True).clamp(min=MIN_CHANGED_SHARE)


def object_weights(scenes: list[Scene], columns: int, rows: int) -> Tensor:
    """Extra loss weights for objects, (n, 1, rows, columns): each object adds 1 on average."""
    weights = torch.zeros(len(scenes), 1, rows, columns)
    for scene, count in zip(scenes, weights, strict=True):
        for thing in scene.things:
            share = torch.from_numpy(coverage(scene, thing, columns, rows)).float()
            count += share / share.mean().clamp(min=1 / share.numel())
    return weights


def pseudo_huber(errors: Tensor) -> Tensor:
    """The pseudo-Huber loss of token errors (n, tokens, channels), (n, tokens, 1).

    Where the network cannot tell which of two things is right, squared errors are least for the mean of both, which
    looks like haze. Lengths are least for one of the two (as in Song and Dhariwal, 2023, "Improved techniques").
    """
    squares = errors.square().mean(2, keepdim=True)
    return 2 * HUBER_DELTA * ((squares + HUBER_DELTA**2).sqrt() - HUBER_DELTA)


def _as_sequence(values: Tensor) -> Tensor:
    """(n, c, h, w) as (n, h * w, c)."""
    return values.flatten(2).transpose(1, 2)


def train_transformer(
    folder: Path, name: str, model: ProbedTransformer, training: TransformerTraining, schedule: Schedule, until: float
) -> Run:
    """The transformer's run, finished or not."""
    run = Run(folder / f"{name}.pt", model.to(device()), schedule)
    run.train(lambda step: training.loss(model, step), until)
    return run
