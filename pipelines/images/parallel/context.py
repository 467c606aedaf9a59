"""`parallel = "context"`: every device has the denoiser and computes a part of an image's tokens, by the plan that
its class has in diffusers. Between the ranks, attention exchanges heads for tokens (Ulysses).
"""

from collections.abc import Mapping
from typing import Any

import torch

from pipelines.images.denoising.forward_arguments import MASK, TEXT, pad_text

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
