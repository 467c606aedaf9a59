"""What each token of a picture shows, asked of starter-beta's transformer while it draws.

The error of a picture is a faint teacher: a boat of the wrong colour is wrong in a few tokens of many. So small heads
ask the tokens half-way through the network what stands there, and of which colour, and the renderer knows the answer.
What a picture is to become, they must find in the prompt and in the references. Diffusion transformers learn many times
faster when their inner states are held to what is there (Yu et al., 2024, "Representation alignment for generation").
The heads are thrown away.
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

from starters.training.texts import NOTHING, SCENERY, THING, UNSAID
from starters.world.layout import layout_of
from starters.world.render import placed
from starters.world.scene import Scene, Thing
from starters.world.shapes import parts_of

QUESTIONS: Final = {**THING, **SCENERY}
READ_REFERENCES: Final = 1  # after which of the single-stream blocks the tokens of references are asked
READ_PICTURE: Final = 3  # those of the picture: between the two they must find out what changes
COVERED: Final = (0.02, 0.25)  # of a token: less is nothing, more is the object, and between the two nothing is asked
FINER: Final = 8  # along a token's side, that what is covered is counted in
NOTHING_COUNTS: Final = 0.15  # against an object: most tokens show none
OBJECTS: Final = 3.0  # how much more it counts to know an object than to know the scenery
CHANGED: Final = 2.0  # how much more it counts what an edit changes: much more, and all is taken to change
Answers = dict[str, Tensor]  # to each question, (pictures, tokens), UNSAID where it isn't asked


class Understanding(nn.Module):
    """A transformer, and the heads that ask it what its tokens show."""

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

    def look(self, **inputs: Any) -> Tensor:
        """Scores of references that nothing is drawn after: a third of the work, and the objects in them are many."""
        kept: list[Tensor] = []
        blocks = self.network.single_transformer_blocks
        self.network.single_transformer_blocks = blocks[: READ_REFERENCES + 1]
        try:
            with blocks[READ_REFERENCES].register_forward_hook(lambda *said: kept.append(said[2])):
                self.network(**inputs)
        finally:
            self.network.single_transformer_blocks = blocks
        scores: Tensor = self.heads["references"](kept[0][:, inputs["encoder_hidden_states"].shape[1] :])
        return scores

    def forward(self, pictured: int, **inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Velocity, and scores of the picture's `pictured` tokens and of the references', (n, tokens, answers)."""
        kept: list[Tensor] = []
        blocks = self.network.single_transformer_blocks
        with (
            blocks[READ_REFERENCES].register_forward_hook(lambda *said: kept.append(said[2])),
            blocks[READ_PICTURE].register_forward_hook(lambda *said: kept.append(said[2])),
        ):
            drawn = self.network(**inputs, return_dict=False)[0]
        early, late = (state[:, inputs["encoder_hidden_states"].shape[1] :] for state in kept)
        return drawn, self.heads["picture"](late[:, :pictured]), self.heads["references"](early[:, pictured:])


def shown(pictures: list[list[Scene]], columns: int, rows: int) -> Answers:
    """What every token shows, row by row; of several pictures for each prompt, one after the other."""
    each = [[_shown(scene, columns, rows) for scene in scenes] for scenes in pictures]
    return {
        question: torch.from_numpy(
            np.concatenate([np.stack([a[question].ravel() for a in answers]) for answers in each], axis=1)
        )
        for question in QUESTIONS
    }


def misunderstood(scores: Tensor, answers: Answers, before: Answers | None = None) -> Tensor:
    """The mean cross entropy over the questions; `scores` are (n, tokens, answers).

    Objects count more than scenery, and answers that are others than before an edit count most.
    """
    parts = torch.split(scores.float(), [len(values) for values in QUESTIONS.values()], dim=-1)
    losses = []
    for (question, values), score in zip(QUESTIONS.items(), parts, strict=True):
        wanted = answers[question].to(score.device)
        counts = (wanted != UNSAID).float()
        if question in THING:
            counts[wanted == values.index(NOTHING)] = NOTHING_COUNTS
        if before is not None:
            counts = counts + CHANGED * (wanted != before[question].to(score.device)) * (counts > 0)
        wrong = functional.cross_entropy(score.transpose(1, 2), wanted, ignore_index=UNSAID, reduction="none")
        loss = (counts * wrong).sum() / counts.sum()
        losses.append(OBJECTS * loss if question in THING else loss)
    return torch.stack(losses).mean()


def _shown(scene: Scene, columns: int, rows: int) -> dict[str, npt.NDArray[np.int64]]:
    answers = {
        question: np.full((rows, columns), values.index(NOTHING if question in THING else getattr(scene, question)))
        for question, values in QUESTIONS.items()
    }
    for thing in scene.things:
        share = covered(scene, thing, columns, rows)
        for question, values in THING.items():
            answers[question][share > COVERED[0]] = UNSAID
            answers[question][share > COVERED[1]] = values.index(getattr(thing, question))
    return answers


@lru_cache(maxsize=256)  # a batch's objects are asked for several times
def covered(scene: Scene, thing: Thing, columns: int, rows: int) -> npt.NDArray[np.float64]:
    """How much of each token an object of the scene covers, (rows, columns)."""
    box = layout_of(scene, FINER * columns, FINER * rows).box(thing.size, thing.place)
    mask = Image.new("L", (FINER * columns, FINER * rows))
    for part in parts_of(thing.kind):
        ImageDraw.Draw(mask).polygon(placed(part.outline, box).round().ravel().tolist(), fill=1)
    cells = np.array(mask).reshape(rows, FINER, columns, FINER)
    share: npt.NDArray[np.float64] = cells.mean((1, 3))
    return share
