"""How the makers of a chat checkpoint sample from it, as its generation_config.json says. Pure."""

from pathlib import Path
from typing import Final

from pipelines.catalog.checkpoint_files import read_json

BOUNDS: Final = {  # by field of `ChatSampling`
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}


def read_sampling_defaults(folder: Path) -> dict[str, float]:
    """Return the fields that the folder sets, without those that make no sense; none for a folder without the file."""
    values = read_json(folder / "generation_config.json")
    greedy = {"temperature": 0} if values.get("do_sample") is False else {}
    found = {name: values.get(name) for name in BOUNDS} | greedy
    return {
        name: int(value) if name == "top_k" else float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_within_bounds(name, value)
    }


def _is_within_bounds(name: str, value: float) -> bool:
    least, most = BOUNDS[name]
    return least <= value <= most
