"""The kernels for attention that are installed here, and plain arithmetic to hold each against.

All take torch's layout: queries [batch, heads, tokens, head size], keys and values with as many heads or fewer.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# Of the norm of a head's output. Rounding probabilities to bfloat16 costs 0.003; kernels in 8 bits of whole tensors
# cost 0.03 and more, and wrong ones 0.1 and more.
TOLERANCE: Final = {torch.bfloat16: 0.02, torch.float16: 0.01, torch.float32: 0.002}
CHECKED_QUERIES: Final = 256  # so many, from the first to the last: plain arithmetic takes time and memory

plain_torch: Final = torch.nn.functional.scaled_dot_product_attention  # before it is replaced


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of torch.nn.functional.scaled_dot_product_attention but for dropout, of which there is none."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    causal: bool = False
    scale: float | None = None
    grouped: bool = False  # whether several heads of queries share one of keys


Kernel = Callable[[AttentionCall], torch.Tensor]


def by_torch(call: AttentionCall) -> torch.Tensor:
    """Compute by the kernel that torch chooses."""
    return plain_torch(
        call.query, call.key, call.value, call.mask, 0.0, call.causal, scale=call.scale, enable_gqa=call.grouped
    )


def installed_kernels(import_module: Callable[[str], Any] = importlib.import_module) -> Mapping[str, Kernel]:
    """Return the kernels of torch and of other packages that import here, by name."""
    kernels: dict[str, Kernel] = {
        "flash": partial(_of_torch, "flash", SDPBackend.FLASH_ATTENTION),
        "cudnn": partial(_of_torch, "cudnn", SDPBackend.CUDNN_ATTENTION),
        "efficient": partial(_of_torch, "efficient", SDPBackend.EFFICIENT_ATTENTION),
        "math": partial(_of_torch, "math", SDPBackend.MATH),
    }
    for name, (module, function) in OTHERS.items():
        try:
            compute = getattr(import_module(module), function)
        except Exception:  # noqa: S112 - not installed, or built for another torch, driver or chip: it raises anything
            continue
        kernels[name] = partial(_sage if name == "sage" else _tokens_first, compute)
    return kernels


OTHERS: Final = {  # the module and its function, by the kernel's name
    "flash-attn-2": ("flash_attn", "flash_attn_func"),
    "flash-attn-3": ("flash_attn_interface", "flash_attn_func"),
    "flash-attn-4": ("flash_attn.cute", "flash_attn_func"),
    "aiter": ("aiter", "flash_attn_func"),  # ROCm's
    "sage": ("sageattention", "sageattn"),
}


def _of_torch(name: str, backend: SDPBackend, call: AttentionCall) -> torch.Tensor:
    """Compute by one of torch's kernels. Without a mask its operator is called: torch's context manager takes some
    50 us, as long as a small denoiser's attention."""
    operands = call.query, call.key, call.value
    match name, call.mask:
        case "flash", None:
            output = torch.ops.aten._scaled_dot_product_flash_attention(*operands, 0.0, call.causal, scale=call.scale)
        case "cudnn" | "efficient", None:
            operator = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention")
            output = operator(*operands, None, False, 0.0, call.causal, scale=call.scale)
        case _:
            with sdpa_kernel(backend):
                return by_torch(call)
    return output[0]  # type: ignore[no-any-return]


def _tokens_first(compute: Callable[..., Any], call: AttentionCall) -> torch.Tensor:
    """Compute by a kernel of the flash-attn packages: [batch, tokens, heads, head size], and no mask."""
    _refuse_mask(call)
    operands = (each.transpose(1, 2) for each in (call.query, call.key, call.value))
    output = compute(*operands, softmax_scale=call.scale, causal=call.causal)
    first: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return first.transpose(1, 2)


def _sage(compute: Callable[..., Any], call: AttentionCall) -> torch.Tensor:
    _refuse_mask(call)
    output: torch.Tensor = compute(
        call.query, call.key, call.value, tensor_layout="HND", is_causal=call.causal, sm_scale=call.scale
    )
    return output


def _refuse_mask(call: AttentionCall) -> None:
    if call.mask is not None:
        raise ValueError("it takes no mask")


def worst_error(call: AttentionCall, output: torch.Tensor) -> float:
    """Return how far a kernel's output is from plain arithmetic in float32: the largest difference of a head's output,
    as a part of its norm, over queries from the first to the last. NaN where either has one. Blocks."""
    queries = call.query.shape[2]
    chosen = torch.linspace(0, queries - 1, min(queries, CHECKED_QUERIES), device=call.query.device).round().long()
    worst = 0.0
    for batch, expected in enumerate(_plain(call, chosen)):
        difference = output[batch].index_select(1, chosen).float() - expected
        error = difference.norm(dim=(1, 2)) / expected.norm(dim=(1, 2)).clamp_min(torch.finfo(torch.float32).tiny)
        worst = max(worst, error.max().item()) if not error.isnan().any() else float("nan")
        if worst != worst:
            break
    return worst


def _plain(call: AttentionCall, chosen: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield each row's output for the chosen queries [heads, chosen, head size]: softmax(q k^T scale + mask) v."""
    heads, tokens, size = call.query.shape[1:]
    repeats = heads // call.key.shape[1]
    scale = size**-0.5 if call.scale is None else call.scale
    mask = call.mask
    if mask is not None:
        mask = mask.expand(call.query.shape[0], heads, tokens, call.key.shape[2])
    for batch in range(call.query.shape[0]):
        key = call.key[batch].float().repeat_interleave(repeats, 0)
        value = call.value[batch].float().repeat_interleave(repeats, 0)
        scores = call.query[batch].index_select(1, chosen).float() @ key.transpose(1, 2) * scale
        if call.causal:
            later = torch.arange(key.shape[1], device=chosen.device) > chosen[:, None]
            scores = scores.masked_fill(later, -torch.inf)
        if mask is not None:
            given = mask[batch].index_select(1, chosen)
            scores = scores.masked_fill(~given, -torch.inf) if given.dtype == torch.bool else scores + given.float()
        hidden = (scores == -torch.inf).all(-1, keepdim=True)  # from a query a mask hides all keys: torch answers zeros
        yield scores.softmax(-1).masked_fill(hidden, 0.0) @ value
