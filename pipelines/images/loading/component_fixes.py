"""Fixes of loaded components: tables of positions that a denoiser keeps on the host, and codecs that overflow in
float16."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from pipelines.families.registry import family_of

POSITIONS: Final = re.compile("rope|rotary|posembed", re.IGNORECASE)  # of the names of classes without weights


def bring_position_tables(denoiser: torch.nn.Module, device: torch.device) -> None:
    """Move the tables that modules keep beside their buffers to the device, and have those that they return moved
    there."""
    if device.type != "cuda":
        return
    for module in denoiser.modules():
        if POSITIONS.search(type(module).__name__) and next(module.parameters(), None) is None:
            for name, value in vars(module).items():
                if not name.startswith("_") and any(map(torch.is_tensor, tree_leaves(value))):
                    setattr(module, name, _move_tables(value, device))
            module.register_forward_hook(lambda _module, _arguments, tables: _move_tables(tables, device))


def _move_tables(tables: Any, device: torch.device) -> Any:
    return tree_map_only(torch.Tensor, lambda each: each.to(device), tables)


def is_cast(part: Any, pipeline_class: type[Any]) -> bool:
    """Return whether the class's calls cast this component."""
    config = getattr(part, "config", None)
    if not isinstance(part, torch.nn.Module) or not isinstance(config, dict) or part.dtype == torch.float32:
        return False
    return family_of(pipeline_class.__name__).casts_codec(config, pipeline_class)


@contextlib.contextmanager
def restored_dtype(codec: Any) -> Iterator[None]:
    """Give the codec back the dtype that it had once a pipeline call is over. A pass that runs out of memory, and some
    classes at their end, leave it as they have cast it; then every later call would fail."""
    dtype = getattr(codec, "dtype", None)
    try:
        yield
    finally:
        if dtype is not None and codec.dtype != dtype:
            codec.to(dtype)
