"""The text encoders, taught to understand before there is anything to draw.

From what an encoder says in a prompt's slots, small heads must tell the scene: its sky and ground from one slot, what
stands on the left from another. That costs a hundredth of learning the same from pictures, and the generators, which
keep the encoder as it is, need to learn drawing only. The heads are thrown away.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from starters.tokens import CHANGE, LENGTH, SLOTS
from starters.training.loop import Run, Schedule, device, fast_math
from starters.training.pictures import rng_for
from starters.world.captions import sample_pair
from starters.world.edits import CHANGES, Edit, sample_chain
from starters.world.scene import (
    BACKDROPS,
    COLOURS,
    GROUNDS,
    KINDS,
    LIGHTS,
    MEASURES,
    PLACES,
    SKIES,
    STYLES,
    Scene,
    Thing,
)

NOTHING: Final = "nothing"  # no object, or no change
THING: Final = {"kind": (*KINDS, NOTHING), "colour": (*COLOURS, NOTHING), "size": (*MEASURES, NOTHING)}
SCENERY: Final = {
    "sky": (*SKIES, NOTHING), "ground": (*GROUNDS, NOTHING), "backdrop": (*BACKDROPS, NOTHING),
    "light": (*LIGHTS, NOTHING), "style": (*STYLES, NOTHING),
}  # fmt: skip
CHANGED: Final = {"change": ("draw", *CHANGES), "gone": (*KINDS, NOTHING), "place": (*PLACES, NOTHING)}
ANSWERS: Final = {CHANGE: CHANGED, SLOTS[0]: SCENERY, **dict.fromkeys(SLOTS[1:], THING)}
WORDS: Final = 4000  # captions and instructions that the tokenizers learn from
UNSAID: Final = -100  # a class that cross entropy passes over


@dataclass(frozen=True, slots=True)
class Lesson:
    """A prompt and the answers about it, by slot and question."""

    text: str
    answers: dict[str, dict[str, str]]


def caption_lesson(rng: np.random.Generator) -> Lesson:
    """A caption, and the scene it is of."""
    scene, said = sample_pair(rng, "train")
    answers = {CHANGE: {"change": "draw", "gone": NOTHING, "place": NOTHING}, SLOTS[0]: _scenery(scene)}
    for place in PLACES:
        thing = next((thing for thing in scene.things if thing.place == place), None)
        answers[place] = _thing(thing)
    return Lesson(said.text, answers)


def edit_lesson(rng: np.random.Generator) -> Lesson:
    """An instruction, and what is another than before."""
    edit = sample_chain(rng, 1)[0]
    gone, come = _difference(edit)
    answers: dict[str, dict[str, str]] = {
        CHANGE: {
            "change": edit.change,
            "gone": NOTHING if gone is None else gone.kind,
            "place": NOTHING if come is None else come.place,
        },
        SLOTS[0]: {
            name: value if value != _scenery(edit.before)[name] else NOTHING
            for name, value in _scenery(edit.after).items()
        },
        **{place: _thing(come if come is not None and come.place == place else None) for place in PLACES},
    }
    return Lesson(edit.instruction, answers)


def words_to_learn() -> list[str]:
    """What the tokenizers learn their pieces from."""
    rng = rng_for(4)
    captions = [sample_pair(rng, "train")[1].text for _ in range(WORDS // 2)]
    return [*captions, *(sample_chain(rng, 1)[0].instruction for _ in range(WORDS // 2))]


class Encoder(nn.Module):
    """A text encoder with its tokenizer, and the heads that it is taught by."""

    def __init__(self, network: nn.Module, tokenizer: Any, width: int) -> None:
        super().__init__()
        self.network, self.tokenizer = network, tokenizer
        self.slots = tuple(ANSWERS) if tokenizer.chat_template else (SLOTS[0], *SLOTS[1:])
        self.heads = nn.ModuleDict(
            {
                f"{slot} {question}": nn.Linear(width, len(values))
                for slot in self.slots
                for question, values in ANSWERS[slot].items()
            }
        )

    def tokens(self, texts: list[str]) -> dict[str, Tensor]:
        """Token numbers and mask, (batch, LENGTH), as the pipelines ask for them."""
        if self.tokenizer.chat_template:
            texts = [
                self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
                )
                for text in texts
            ]
        return dict(
            self.tokenizer(texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
        )

    def forward(self, tokens: dict[str, Tensor]) -> Tensor:
        """What the encoder says at every position, (batch, LENGTH, width)."""
        where = device()
        moved = {name: value.to(where) for name, value in tokens.items()}
        if not self.tokenizer.chat_template:
            moved.pop("attention_mask")  # the pipeline gives CLIP none
        said: Tensor = self.network(**moved)[0]
        return said

    def read(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        """Scores of every answer to every question, (batch, answers)."""
        said = self(tokens)
        count = len(self.slots)
        ends = tokens["attention_mask"].sum(1) if self.tokenizer.chat_template else torch.full((len(said),), LENGTH)
        rows = torch.arange(len(said))
        at = {slot: said[rows, ends - count + i] for i, slot in enumerate(self.slots)}
        return {name: head(at[name.split()[0]]) for name, head in self.heads.items()}


def train_text(folder: Path, name: str, encoder: Encoder, schedule: Schedule, batch: int, until: float) -> Run:
    """The encoder's run, as far as it got. Only an encoder whose tokenizer has questions about changes reads edits."""
    run = Run(folder / f"{name}.pt", encoder.to(device()), schedule)

    def loss(step: int) -> Tensor:
        lessons = lessons_of(step, batch, edits=CHANGE in encoder.slots)
        with fast_math(device()):
            scores = encoder.read(encoder.tokens([lesson.text for lesson in lessons]))
        return _loss(scores, lessons)

    run.train(loss, until)
    return run


def lessons_of(step: int, batch: int, *, edits: bool) -> list[Lesson]:
    """The lessons of a step."""
    rng = rng_for(5, step)
    return [edit_lesson(rng) if edits and i % 2 else caption_lesson(rng) for i in range(batch)]


def _loss(scores: dict[str, Tensor], lessons: list[Lesson]) -> Tensor:
    losses = []
    for name, score in scores.items():
        slot, question = name.split()
        values = ANSWERS[slot][question]
        wanted = torch.tensor([values.index(lesson.answers[slot][question]) for lesson in lessons])
        losses.append(functional.cross_entropy(score.float(), wanted.to(score.device)))
    return torch.stack(losses).mean()


def _scenery(scene: Scene) -> dict[str, str]:
    return {name: getattr(scene, name) for name in SCENERY}


def _thing(thing: Thing | None) -> dict[str, str]:
    return {name: NOTHING if thing is None else getattr(thing, name) for name in THING}


def _difference(edit: Edit) -> tuple[Thing | None, Thing | None]:
    """What an edit takes away and what it brings."""
    gone = [thing for thing in edit.before.things if thing not in edit.after.things]
    come = [thing for thing in edit.after.things if thing not in edit.before.things]
    return (gone or [None])[0], (come or [None])[0]  # type: ignore[list-item]
