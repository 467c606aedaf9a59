"""Going on from a checkpoint whose training state is gone: its weights become the state.

Encoders stay as they are, since generators know no others; what draws is trained on. The optimizers begin anew.
"""

import re
from pathlib import Path
from typing import Final

import torch
from diffusers import DiffusionPipeline
from torch import Tensor

from starters.training.codecs import decoder_of
from starters.training.loop import Run
from starters.training.recipes import Phase, Training
from starters.training.texts import Encoder
from starters.training.understanding import Understanding

State = dict[str, Tensor]
CARD_LINE: Final = re.compile(r"^\| training \| (.*) \|$", re.MULTILINE)


def take_up(training: Training, checkpoint: Path) -> None:
    """Make the states that are missing from a trained checkpoint. Those of a training under way are left alone.

    Raises OSError where there is no model card, RuntimeError where the checkpoint is of another architecture; then
    nothing is written.
    """
    said = CARD_LINE.search((checkpoint / "README.md").read_text())
    pipeline = DiffusionPipeline.from_pretrained(checkpoint, torch_dtype=torch.float32, safety_checker=None)
    training.keep_tokenizer(pipeline.tokenizer)
    text = pipeline.text_encoder if training.starter == "alpha" else pipeline.text_encoder.model
    network = pipeline.unet if training.starter == "alpha" else pipeline.transformer
    learned: dict[Phase, tuple[State, bool]] = {
        "text": (text.state_dict(), True),
        **{stage.kind: (network.state_dict(), stage.kind != "full") for stage in training.recipe.stages},
        "decoder": (decoder_of(pipeline.vae), False),
    }
    missing = [phase for phase in learned if not (training.folder / f"{training.starter}-{phase}.pt").exists()]
    runs = [_begun(training, phase, *learned[phase]) for phase in missing]
    for run in runs:
        run.save()
    training.before.write_text(said[1] if said else "")


def _begun(training: Training, phase: Phase, learned: State, is_finished: bool) -> Run:
    run = training.run(phase)
    for model in (run.model, run.average):
        target = model.network if isinstance(model, Encoder | Understanding) else model
        known = target.state_dict()
        target.load_state_dict({**known, **{name: value for name, value in learned.items() if name in known}})
    run.step = run.schedule.steps if is_finished else 0
    return run
