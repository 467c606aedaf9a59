"""`parallel = "tensor"` and `"context"`: every device has a part of the denoiser's weights, or computes a part of an
image's tokens, by the plan that its class has in diffusers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pipelines.images.denoising.forward_arguments import MASK, TEXT, pad_text
from pipelines.images.parallel.messages import replace_weights
from pipelines.images.parallel.process_group import ProcessGroup


class _Columns(ColwiseParallel):
    """The exchanges of a layer whose weights are divided already."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: Any) -> None:
        pass


class _Rows(RowwiseParallel):
    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: Any) -> None:
        pass


def reserve(denoiser: Any, group: ProcessGroup) -> None:
    """Check that this rank's device has room for the most that `shard` takes there: the parts, and one whole weight.
    Raises RuntimeError."""
    from diffusers.hooks.tensor_parallel import resolve_tp_shard_specs

    specs = resolve_tp_shard_specs(denoiser, denoiser._tp_plan, group.size)
    divided = {name for name, spec in specs.items() if spec.dim is not None}
    sizes = {name: weight.nbytes for name, weight in (*denoiser.named_parameters(), *denoiser.named_buffers())}
    parts = sum(nbytes // group.size if name in divided else nbytes for name, nbytes in sizes.items())
    torch.empty(parts + max(sizes.values(), default=0), dtype=torch.uint8, device=group.device)  # torch keeps it


def shard(denoiser: Any, weights: list[torch.Tensor], group: ProcessGroup) -> None:
    """Divide a denoiser in place. Rank 0 has its `weights`; those of the others have no memory. Collective."""
    from diffusers.hooks.tensor_parallel import resolve_tp_shard_specs

    specs = resolve_tp_shard_specs(denoiser, denoiser._tp_plan, group.size)
    by_weight = {id(weight): specs.get(name) for name, weight in denoiser.named_parameters()}
    new: dict[int, torch.Tensor] = {}
    for weight in weights:
        whole = weight.detach().to(group.device).contiguous() if group.rank == 0 else torch.empty_like(
            weight, device=group.device, memory_format=torch.contiguous_format
        )  # fmt: skip
        group.fill(whole)
        spec = by_weight.get(id(weight))
        if spec is None:
            new[id(weight)] = whole
        elif spec.dim is None:
            new[id(weight)] = DTensor.from_local(whole, group.mesh, [Replicate()], run_check=False)
        else:
            part = _part(whole, spec.dim, spec.block_sizes, group)
            new[id(weight)] = DTensor.from_local(part, group.mesh, [Shard(spec.dim)], run_check=False)
    replace_weights(denoiser, new)
    sides = {name.removesuffix(".weight"): spec.dim for name, spec in specs.items() if name.endswith(".weight")}
    parallelize_module(denoiser, group.mesh, {path: _Rows() if dim else _Columns() for path, dim in sides.items()})


def _part(whole: torch.Tensor, dim: int, blocks: list[int], group: ProcessGroup) -> torch.Tensor:
    """Return this rank's part of every block."""
    pieces = [block.chunk(group.size, dim)[group.rank] for block in torch.split(whole, blocks, dim)]
    return torch.cat(pieces, dim)


IMAGE = "hidden_states"  # (rows, tokens, channels)


def apply_context(denoiser: Any, config: Any) -> None:
    """Make a denoiser's forward passes run with context parallelism, so that each is collective. `config` is
    `ProcessGroup.context`."""
    from diffusers.hooks.context_parallel import apply_context_parallel

    for module in denoiser.modules():
        processor: Any = getattr(module, "processor", None)
        if hasattr(processor, "_parallel_config"):
            processor._parallel_config = config
    apply_context_parallel(denoiser, config.context_parallel_config, denoiser._cp_plan)


def divide(arguments: Mapping[str, Any], parts: int) -> dict[str, Any] | None:
    """Return the arguments so that their tokens can be divided: as they are, or with a longer text where the denoiser
    takes a mask for it. None where that is not possible."""
    if arguments[IMAGE].shape[1] % parts:
        return None
    text = arguments.get(TEXT)
    if not isinstance(text, torch.Tensor) or text.shape[1] % parts == 0:
        return dict(arguments)
    length = -(-text.shape[1] // parts) * parts
    return {**arguments, **pad_text([arguments], length)} if MASK in arguments else None
