"""An auxiliary loss for starter-beta's transformer: its tokens must tell what they show.

The error of an image is a weak signal: a boat of the wrong colour is wrong in a few tokens of many. So small heads
classify the hidden states half-way through the network: which object stands there, and of which colour. The renderer
has the labels. Diffusion transformers learn many times faster when their hidden states are aligned with the content
(Yu et al., 2024, "Representation alignment for generation"). The heads are thrown away.
"""

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from diffusers import Flux2Transformer2DModel
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional

from starters.training.text_encoder import IGNORE_INDEX, NOTHING, SCENERY, THING
from starters.world.layout import layout_of
from starters.world.render import placed
from starters.world.scene import Scene, Thing
from starters.world.shapes import parts_of

QUESTIONS: Final = {**THING, **SCENERY}
REFERENCE_BLOCK: Final = 1  # the single-stream block after which tokens of references are probed
IMAGE_BLOCK: Final = 3  # and tokens of the image: between the two, the network must find out what changes
COVERAGE_THRESHOLDS: Final = (
    0.02,
    0.25,
)  # of a token: less is no object, more is the object, ignored in between
SUPERSAMPLING: Final = 8  # cells along a token's side, to measure coverage
NOTHING_WEIGHT: Final = 0.15  # against 1 for an object: most tokens show none
THING_WEIGHT: Final = 3.0  # of the loss about objects, against scenery
CHANGED_WEIGHT: Final = (
    2.0  # extra weight where an edit changes the label; with much more, everything is expected to change
)
Answers = dict[str, Tensor]  # by question: (images, tokens), IGNORE_INDEX where there is no label


class ProbedTransformer(nn.Module):
    """A transformer with heads on its hidden states."""

    def __init__(self, network: Flux2Transformer2DModel) -> None:
        super().__init__()
        self.network = network
        width = network.config.num_attention_heads * network.config.attention_head_dim
        self.heads = nn.ModuleDict(
            {
                of: nn.Sequential(
                    nn.LayerNorm(width, elementwise_affine=False),
                    nn.Linear(width, sum(len(values) for values in QUESTIONS.values())),
                )
                for of in ("picture", "references")
            }
        )

    def check_references(self, **inputs: Any) -> Tensor:
        """Logits for references alone, without an image: a third of the work, and they show many objects."""
        hidden: list[Tensor] = []
        blocks = self.network.single_transformer_blocks
        self.network.single_transformer_blocks = blocks[: REFERENCE_BLOCK + 1]
        try:
            with blocks[REFERENCE_BLOCK].register_forward_hook(lambda *call: hidden.append(call[2])):
                self.network(**inputs)
        finally:
            self.network.single_transformer_blocks = blocks
        scores: Tensor = self.heads["references"](hidden[0][:, inputs["encoder_hidden_states"].shape[1] :])
        return scores

    def forward(self, image: int, **inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Velocity, and logits of the image's `pictured` tokens and of the references', (n, tokens, answers)."""
        hidden: list[Tensor] = []
        blocks = self.network.single_transformer_blocks
        with (
            blocks[REFERENCE_BLOCK].register_forward_hook(lambda *call: hidden.append(call[2])),
            blocks[IMAGE_BLOCK].register_forward_hook(lambda *call: hidden.append(call[2])),
        ):
            velocity = self.network(**inputs, return_dict=False)[0]
        early, late = (state[:, inputs["encoder_hidden_states"].shape[1] :] for state in hidden)
        return velocity, self.heads["picture"](late[:, :image]), self.heads["references"](early[:, image:])


def check_labels(images: list[list[Scene]], columns: int, rows: int) -> Answers:
    """The labels of every token, row by row, concatenated over the images of each prompt."""
    each = [[_scene_labels(scene, columns, rows) for scene in scenes] for scenes in images]
    return {
        question: torch.from_numpy(
            np.concatenate([np.stack([a[question].ravel() for a in answers]) for answers in each], axis=1)
        )
        for question in QUESTIONS
    }


def check_loss(scores: Tensor, answers: Answers, before: Answers | None = None) -> Tensor:
    """The weighted mean cross entropy over the questions; `scores` are logits (n, tokens, answers).

    Objects weigh more than scenery, and labels that differ from those before an edit weigh most.
    """
    parts = torch.split(scores.float(), [len(values) for values in QUESTIONS.values()], dim=-1)
    losses = []
    for (question, values), score in zip(QUESTIONS.items(), parts, strict=True):
        labels = answers[question].to(score.device)
        weights = (labels != IGNORE_INDEX).float()
        if question in THING:
            weights[labels == values.index(NOTHING)] = NOTHING_WEIGHT
        if before is not None:
            weights = weights + CHANGED_WEIGHT * (labels != before[question].to(score.device)) * (weights > 0)
        errors = functional.cross_entropy(score.transpose(1, 2), labels, ignore_index=IGNORE_INDEX, reduction="none")
        loss = (weights * errors).sum() / weights.sum()
        losses.append(THING_WEIGHT * loss if question in THING else loss)
    return torch.stack(losses).mean()


def _scene_labels(scene: Scene, columns: int, rows: int) -> dict[str, npt.NDArray[np.int64]]:
    answers = {
        question: np.full((rows, columns), values.index(NOTHING if question in THING else getattr(scene, question)))
        for question, values in QUESTIONS.items()
    }
    for thing in scene.things:
        share = coverage(scene, thing, columns, rows)
        for question, values in THING.items():
            answers[question][share > COVERAGE_THRESHOLDS[0]] = IGNORE_INDEX
            answers[question][share > COVERAGE_THRESHOLDS[1]] = values.index(getattr(thing, question))
    return answers


@lru_cache(maxsize=256)  # needed several times for each batch
def coverage(scene: Scene, thing: Thing, columns: int, rows: int) -> npt.NDArray[np.float64]:
    """The share of each token that an object of the scene covers, (rows, columns)."""
    box = layout_of(scene, SUPERSAMPLING * columns, SUPERSAMPLING * rows).box(thing.size, thing.place)
    mask = Image.new("L", (SUPERSAMPLING * columns, SUPERSAMPLING * rows))
    for part in parts_of(thing.kind):
        ImageDraw.Draw(mask).polygon(placed(part.outline, box).round().ravel().tolist(), fill=1)
    cells = np.array(mask).reshape(rows, SUPERSAMPLING, columns, SUPERSAMPLING)
    share: npt.NDArray[np.float64] = cells.mean((1, 3))
    return share
