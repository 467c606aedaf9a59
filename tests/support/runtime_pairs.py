"""`[runtime]` options by short names, alone and in pairs, and what becomes of each: tests of the catalog, of a CPU and
of a GPU go through all of them, and docs/reference/runtime-options.md has the table."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.memory.runtime import check_conflicts
from pipelines.protocol.images import Lora, Runtime, StepCache

ADAPTERS = Path("loras")
Options = Mapping[str, dict[str, Any]]
OPTIONS: Options = {
    "compile": {"compile": True},
    "fp8": {"quantize": "fp8"},
    "float8": {"quantize": "float8"},
    "first-block": {"cache": StepCache("first-block", threshold=0.1)},
    "taylorseer": {"cache": StepCache("taylorseer", interval=3)},
    "attention": {"attention": "_native_math"},
    "vae_tiling": {"vae_tiling": True},
    "bfloat16": {"dtype": "bfloat16"},
    "offload encoders": {"offload": "encoders"},
    "offload model": {"offload": "model"},
    "offload group": {"offload": "group"},
    "loras": {"loras": (Lora(ADAPTERS / "style.safetensors"),)},
    "lora_folder": {"lora_folder": ADAPTERS},
}
NEED_A_GPU = {"offload encoders", "offload model", "offload group"}


def same_key(one: str, other: str, options: Options = OPTIONS) -> bool:
    """Whether both are values of one key."""
    return bool(options[one].keys() & options[other].keys())


def choices(options: Options = OPTIONS) -> list[tuple[str, ...]]:
    """All options alone, and all two that set different keys."""
    both = [pair for pair in itertools.combinations(options, 2) if not same_key(*pair, options)]
    return [*((name,) for name in options), *both]


def runtime_of(names: tuple[str, ...], adapters: Path = ADAPTERS) -> Runtime:
    """`adapters` is the folder with style.safetensors."""
    values = {key: value for name in names for key, value in OPTIONS[name].items()}
    if "loras" in values:
        values["loras"] = (Lora(adapters / "style.safetensors"),)
    if "lora_folder" in values:
        values["lora_folder"] = adapters
    return Runtime(**values)


def is_refused(names: tuple[str, ...]) -> bool:
    """Whether they defeat each other."""
    try:
        check_conflicts(runtime_of(names))
    except CheckpointError:
        return True
    return False


def expected(one: str, other: str) -> str:
    """A cell of the table."""
    names = (one,) if one == other else (one, other)
    if one != other and same_key(one, other):
        return "-"
    if is_refused(names):
        return "no"
    return "GPU" if NEED_A_GPU & set(names) else "yes"
