"""Tables of positions that a denoiser keeps or computes on the host, brought to its device once a forward pass.

Some classes of diffusers return them on the host, and each layer then copies them: a blocking copy from pageable memory
for every layer of every step, which a GPU's launches wait for.
"""

import re
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

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
