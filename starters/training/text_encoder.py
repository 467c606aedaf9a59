"""Training of the two text encoders, before the generators.

From the hidden states in a prompt's slots, small linear heads must classify the scene: its sky and ground from one
slot, what stands on the left from another. That costs a hundredth of learning the same from images, and the
generators, which freeze the encoder, need to learn drawing only. The heads are thrown away.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from starters.tokens import CHANGE, LENGTH, SLOTS
from starters.training.dataset import rng_for
from starters.training.loop import Run, Schedule, device, mixed_precision
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
CORPUS_TEXTS: Final = 4000  # captions and instructions that the tokenizers are trained on
IGNORE_INDEX: Final = -100  # of cross entropy


@dataclass(frozen=True, slots=True)
class TextExample:
    """A prompt and its labels, by slot and question."""

    text: str
    answers: dict[str, dict[str, str]]


def caption_example(rng: np.random.Generator) -> TextExample:
    """A caption, labelled with its scene."""
    scene, caption = sample_pair(rng, "train")
    answers = {CHANGE: {"change": "draw", "gone": NOTHING, "place": NOTHING}, SLOTS[0]: _scenery(scene)}
    for place in PLACES:
        thing = next((thing for thing in scene.things if thing.place == place), None)
        answers[place] = _thing(thing)
    return TextExample(caption.text, answers)


def edit_example(rng: np.random.Generator) -> TextExample:
    """An editing instruction, labelled with what it changes."""
    edit = sample_chain(rng, 1)[0]
    removed, added = _difference(edit)
    answers: dict[str, dict[str, str]] = {
        CHANGE: {
            "change": edit.change,
            "gone": NOTHING if removed is None else removed.kind,
            "place": NOTHING if added is None else added.place,
        },
        SLOTS[0]: {
            name: value if value != _scenery(edit.before)[name] else NOTHING
            for name, value in _scenery(edit.after).items()
        },
        **{place: _thing(added if added is not None and added.place == place else None) for place in PLACES},
    }
    return TextExample(edit.instruction, answers)


def tokenizer_corpus() -> list[str]:
    rng = rng_for(4)
    captions = [sample_pair(rng, "train")[1].text for _ in range(CORPUS_TEXTS // 2)]
    return [*captions, *(sample_chain(rng, 1)[0].instruction for _ in range(CORPUS_TEXTS // 2))]


class TextEncoder(nn.Module):
    """A text encoder with its tokenizer, and the heads that it is trained through."""

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
        """Token ids and mask, (batch, LENGTH), as the pipelines prepare them."""
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
        """Hidden states, (batch, LENGTH, width)."""
        where = device()
        moved = {name: value.to(where) for name, value in tokens.items()}
        if not self.tokenizer.chat_template:
            moved.pop("attention_mask")  # the pipeline passes none to CLIP
        hidden: Tensor = self.network(**moved)[0]
        return hidden

    def classify(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        """Logits by slot and question, (batch, answers)."""
        hidden = self(tokens)
        count = len(self.slots)
        ends = tokens["attention_mask"].sum(1) if self.tokenizer.chat_template else torch.full((len(hidden),), LENGTH)
        rows = torch.arange(len(hidden))
        at = {slot: hidden[rows, ends - count + i] for i, slot in enumerate(self.slots)}
        return {name: head(at[name.split()[0]]) for name, head in self.heads.items()}


def train_text_encoder(
    folder: Path, name: str, encoder: TextEncoder, schedule: Schedule, batch: int, until: float
) -> Run:
    """The encoder's run, finished or not. Edits are trained only if the tokenizer has a slot for changes."""
    run = Run(folder / f"{name}.pt", encoder.to(device()), schedule)

    def loss(step: int) -> Tensor:
        examples = examples_of(step, batch, edits=CHANGE in encoder.slots)
        with mixed_precision(device()):
            scores = encoder.classify(encoder.tokens([example.text for example in examples]))
        return _loss(scores, examples)

    run.train(loss, until)
    return run


def examples_of(step: int, batch: int, *, edits: bool) -> list[TextExample]:
    rng = rng_for(5, step)
    return [edit_example(rng) if edits and i % 2 else caption_example(rng) for i in range(batch)]


def _loss(scores: dict[str, Tensor], examples: list[TextExample]) -> Tensor:
    losses = []
    for name, score in scores.items():
        slot, question = name.split()
        values = ANSWERS[slot][question]
        labels = torch.tensor([values.index(example.answers[slot][question]) for example in examples])
        losses.append(functional.cross_entropy(score.float(), labels.to(score.device)))
    return torch.stack(losses).mean()


def _scenery(scene: Scene) -> dict[str, str]:
    return {name: getattr(scene, name) for name in SCENERY}


def _thing(thing: Thing | None) -> dict[str, str]:
    return {name: NOTHING if thing is None else getattr(thing, name) for name in THING}


def _difference(edit: Edit) -> tuple[Thing | None, Thing | None]:
    """The object that an edit removes and the one that it adds."""
    removed = [thing for thing in edit.before.things if thing not in edit.after.things]
    added = [thing for thing in edit.after.things if thing not in edit.before.things]
    return (removed or [None])[0], (added or [None])[0]  # type: ignore[list-item]
