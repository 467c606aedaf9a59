"""Write a training state as a checkpoint: a plain diffusers folder with a model card."""

import os
import platform
import shutil
from pathlib import Path
from typing import Final

import torch

from starters.training.loop import Run, cpu_has_bfloat16
from starters.training.recipes import Training

CARD: Final = """# {name}

A small checkpoint of the [starter world](../../starters/README.md): flat, poster-like scenes, and nothing else.

| | |
| --- | --- |
| pipeline class | {kind} |
| data | scenes drawn by `starters/world`, with captions and edits from its grammar; no other pictures |
| training | {training} |
| hardware | {hardware} |
| weights | fp16 safetensors, averages over the training steps |
| quality | not measured yet: `python -m starters.measure --cards` |
| licence | none stated yet; the pictures it learned from are the repository's own |
"""


def write_checkpoint(training: Training, folder: Path) -> None:
    """Replace the checkpoint folder, atomically."""
    runs = {phase: training.run(phase) for phase in training.recipe.phases}
    pipeline = training.pipeline()
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    pipeline.save_pretrained(temporary)
    (temporary / "README.md").write_text(
        CARD.format(
            name=folder.name,
            kind=type(pipeline).__name__,
            training="; ".join(
                [*_earlier_training(training), *(f"{phase} {_effort(run)}" for phase, run in runs.items())]
            ),
            hardware=_hardware(),
        )
    )
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def _earlier_training(training: Training) -> list[str]:
    return [training.earlier_note.read_text(), "then"] if training.earlier_note.exists() else []


def _effort(run: Run) -> str:
    return f"{run.step} of {run.schedule.steps} steps, {run.seconds / 60:.0f} min"


def _hardware() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    numbers = "bfloat16" if cpu_has_bfloat16() else "float32"
    return f"{threads} thread{'s' * (threads > 1)} of a {platform.machine()} processor, {numbers}"
