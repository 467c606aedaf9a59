"""`[runtime] compile`: torch.compile of a denoiser's repeated blocks, with fused projections of attention."""

from typing import Any, Final

import torch

# By default 8: from the ninth shape of a block on it would run uncompiled, without a word. A first-block cache and
# five image sizes reach that.
RECOMPILE_LIMIT: Final = 64
FUSED: Final = {
    "to_qkv": ("to_q", "to_k", "to_v"),
    "to_kv": ("to_k", "to_v"),
    "to_added_qkv": ("add_q_proj", "add_k_proj", "add_v_proj"),
}


def raise_recompile_limit() -> None:
    """Raise torch's limit of recompilations for the calling thread: torch keeps settings by thread, and a run compiles
    on its own."""
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT


def compile_denoiser(denoiser: Any) -> None:
    """Compile the denoiser at its next calls, for any size."""
    if getattr(denoiser, "_repeated_blocks", None):
        denoiser.compile_repeated_blocks(dynamic=True)
    else:
        denoiser.forward = torch.compile(denoiser.forward, dynamic=True)  # runs meet outside of it (ForwardMerger)


def fuse_projections(denoiser: Any) -> None:
    """Fuse the projections, so that one matrix product instead of three computes queries, keys and values. The library
    keeps the three beside it, which would take a sixth more memory: they are dropped. Denoisers that can't are left as
    they are."""
    quantized = any(not weight.is_floating_point() or weight.element_size() < 2 for weight in denoiser.parameters())
    if quantized or not hasattr(denoiser, "fuse_qkv_projections"):
        return
    try:
        denoiser.fuse_qkv_projections()
    except ValueError:  # "not supported for models having added KV projections"
        return
    for module in denoiser.modules():
        for fused, parts in FUSED.items():
            if isinstance(getattr(module, fused, None), torch.nn.Module):
                for part in parts:
                    delattr(module, part)
