"""A part of one's own beside the part that it replaces, by their configs: one of another kind may load and draw
something else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pipelines.catalog.file_kinds import FileKind, part_by_class
from pipelines.families.generic import Config

OF_LATENTS: Final = ("scaling_factor", "shift_factor", "latents_mean", "latents_std")  # by which pipelines scale them
DEFAULTS: Final[Config] = {"scaling_factor": 0.18215}  # of diffusers' class; in older configs it is left out
OF_WIDTH: Final = ("latent_channels", "hidden_size", "d_model", "cross_attention_dim", "joint_attention_dim")
SCALES_ITSELF: Final = "AutoencoderTiny"


def other_kind_of_part(config: Config, fitting: tuple[FileKind, ...]) -> FileKind | None:
    """Return what the part in a folder is, by its config, if it is none of the fitting kinds."""
    architectures = config.get("architectures") or [""]
    kind = part_by_class(str(config.get("_class_name") or architectures[0]))
    return kind if kind is not None and kind.name not in {each.name for each in fitting} else None


def differences(new: Config, old: Config, folder: Path) -> Iterator[str]:
    """Yield why a part can't stand in place of another, the one in `folder`, by the values in both configs."""
    kind, own = str(new.get("_class_name", "")), str(old.get("_class_name", ""))
    keys = [key for key in OF_WIDTH if new.get(key) is not None and old.get(key) is not None]
    if "latent_channels" in keys and SCALES_ITSELF not in {kind, own}:
        keys += OF_LATENTS
    for key in keys:
        found, wanted = (each.get(key, DEFAULTS.get(key)) for each in (new, old))
        if found != wanted:
            yield f"its {key} is {found}, and that of {folder} {wanted}: it is of another kind of checkpoint"
