"""A training's state as a checkpoint: a plain diffusers folder with a card that says how it came to be."""

import os
import platform
import shutil
from pathlib import Path
from typing import Final

import torch

from starters.training.loop import Run, multiplies_bfloat16
from starters.training.recipes import Training

CARD: Final = """# {name}

A small checkpoint of the [starter world](../../weights.md): flat, poster-like scenes, and nothing else.

| | |
| --- | --- |
| pipeline class | {kind} |
| data | scenes drawn by `pipelines/starter/world`, with captions and edits from its grammar; no other pictures |
| training | {training} |
| hardware | {hardware} |
| weights | fp16 safetensors, averages over the training steps |
| quality | not measured yet: `darkroom starters measure --cards` |
| licence | none stated yet; the pictures it learned from are the repository's own |
"""


def write_checkpoint(training: Training, folder: Path) -> None:
    """Replace the folder by what has been learned so far, whole or not at all."""
    runs = {phase: training.run(phase) for phase in training.recipe.phases}
    pipeline = training.pipeline()
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    pipeline.save_pretrained(temporary)
    (temporary / "README.md").write_text(
        CARD.format(
            name=folder.name,
            kind=type(pipeline).__name__,
            training="; ".join([*_earlier(training), *(f"{phase} {_spent(run)}" for phase, run in runs.items())]),
            hardware=_hardware(),
        )
    )
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def _earlier(training: Training) -> list[str]:
    return [training.before.read_text(), "then"] if training.before.exists() else []


def _spent(run: Run) -> str:
    return f"{run.step} of {run.schedule.steps} steps, {run.seconds / 60:.0f} min"


def _hardware() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    numbers = "bfloat16" if multiplies_bfloat16() else "float32"
    return f"{threads} thread{'s' * (threads > 1)} of a {platform.machine()} processor, {numbers}"
