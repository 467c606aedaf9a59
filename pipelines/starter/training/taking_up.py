"""Going on from a checkpoint whose training state is gone: its weights become the state.

Encoders stay as they are, since generators know no others; what draws is trained on. The optimizers begin anew.
"""

import re
from pathlib import Path
from typing import Final, cast

import torch
from diffusers import DiffusionPipeline
from torch import nn

from pipelines.starter.training.recipes import Phase, Training
from pipelines.starter.training.texts import Encoder

CARD_LINE: Final = re.compile(r"^\| training \| (.*) \|$", re.MULTILINE)


def take_up(training: Training, checkpoint: Path) -> None:
    """Make the states that are missing from a trained checkpoint. Those of a training under way are left alone."""
    pipeline = DiffusionPipeline.from_pretrained(checkpoint, torch_dtype=torch.float32, safety_checker=None)
    training.keep_tokenizer(pipeline.tokenizer)
    text = pipeline.text_encoder if training.starter == "alpha" else pipeline.text_encoder.model
    network = pipeline.unet if training.starter == "alpha" else pipeline.transformer
    learned: dict[Phase, tuple[nn.Module, bool]] = {
        "text": (text, True),
        **{stage.kind: (network, stage.kind != "full") for stage in training.recipe.stages},
        "decoder": (pipeline.vae, False),
    }
    for phase, (module, is_finished) in learned.items():
        _keep(training, phase, module, is_finished=is_finished)
    said = CARD_LINE.search((checkpoint / "README.md").read_text())
    training.before.write_text(said[1] if said else "")


def _keep(training: Training, phase: Phase, learned: nn.Module, *, is_finished: bool) -> None:
    if (training.folder / f"{training.starter}-{phase}.pt").exists():
        return
    run = training.run(phase)
    for model in (run.model, run.average):
        target = cast("Encoder", model).network if phase == "text" else model
        known = target.state_dict()
        target.load_state_dict({name: value for name, value in learned.state_dict().items() if name in known})
    run.step = run.schedule.steps if is_finished else 0
    run.save()
