"""Start a training from a checkpoint whose training state is gone.

Text encoders stay frozen, since the generator was trained with them; generator and decoder are trained further. The
optimizers start fresh.
"""

import re
from pathlib import Path
from typing import Final

import torch
from diffusers import DiffusionPipeline
from torch import Tensor

from starters.training.decoders import decoder_of
from starters.training.loop import Run
from starters.training.recipes import Phase, Training
from starters.training.text_encoder import TextEncoder
from starters.training.token_checks import ProbedTransformer

State = dict[str, Tensor]
CARD_LINE: Final = re.compile(r"^\| training \| (.*) \|$", re.MULTILINE)


def warm_start(training: Training, checkpoint: Path) -> None:
    """Write the missing states from a trained checkpoint; existing states are left alone.

    Raises OSError if the model card is missing and RuntimeError if the architecture differs; then nothing is written.
    """
    training_line = CARD_LINE.search((checkpoint / "README.md").read_text())
    pipeline = DiffusionPipeline.from_pretrained(checkpoint, torch_dtype=torch.float32, safety_checker=None)
    training.save_tokenizer(pipeline.tokenizer)
    text = pipeline.text_encoder if training.starter == "alpha" else pipeline.text_encoder.model
    network = pipeline.unet if training.starter == "alpha" else pipeline.transformer
    learned: dict[Phase, tuple[State, bool]] = {
        "text": (text.state_dict(), True),
        **{stage.kind: (network.state_dict(), stage.kind != "full") for stage in training.recipe.stages},
        "decoder": (decoder_of(pipeline.vae), False),
    }
    missing = [phase for phase in learned if not (training.folder / f"{training.starter}-{phase}.pt").exists()]
    runs = [_started_run(training, phase, *learned[phase]) for phase in missing]
    for run in runs:
        run.save()
    training.earlier_note.write_text(training_line[1] if training_line else "")


def _started_run(training: Training, phase: Phase, learned: State, is_finished: bool) -> Run:
    run = training.run(phase)
    for model in (run.model, run.average):
        target = model.network if isinstance(model, TextEncoder | ProbedTransformer) else model
        known = target.state_dict()
        target.load_state_dict({**known, **{name: value for name, value in learned.items() if name in known}})
    run.step = run.schedule.steps if is_finished else 0
    return run
