"""Linear layers of a CPU by oneDNN, from weights that are packed once, at load.

torch multiplies float32 by MKL from weights as they lie in the file. Packed for oneDNN, a layer of 2048 by 6144 took
half the time for 8 rows on an AMD EPYC, and 0.8 of it for 256 rows of a prompt. The results differ by rounding alone.
"""

import platform
from typing import Any, Final

import torch
from torch import nn

from pipelines.chat.model.batching import OF_MODELS
from pipelines.chat.model.four_bit_linear import four_bits
from pipelines.device.failures import is_out_of_memory

ROWS: Final = 8  # for which the packing is chosen: those of a decode step
TRIED: Final = (1, 2, 3)  # a text
X86: Final = ("x86_64", "AMD64")
OPERATIONS: Final = ("_linear_pointwise", "_reorder_linear_weight")  # of torch.ops.mkldnn, which no function offers


class PackedLinear(nn.Module):
    """A linear layer. `weight` is opaque: it has its type and shape, but no values that can be read."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (..., out features) of (..., in features)."""
        outputs: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, "none", [], "")
        return outputs


@torch.inference_mode()
def pack_linears(model: nn.Module) -> None:
    """Pack the linear layers of a model on a CPU: those that a pass over a text calls, in four bits if their values
    are from a file of four bits, else as far as oneDNN can. Layers whose weights are read in another way stay as they
    are, and so do those of vision encoders and of experts that the text was not routed to."""
    if platform.machine() not in X86 or not all(hasattr(torch.ops.mkldnn, name) for name in OPERATIONS):
        return
    own: Any = model
    output = own.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for name, (layer, rows_apart) in _called_layers(model).items():
        # the output layer gets a prompt's last token alone, and would take it for a step of decoding
        four = four_bits(layer) if rows_apart and layer is not output else None
        model.set_submodule(name, four or PackedLinear(layer))


def _called_layers(model: nn.Module) -> dict[str, tuple[nn.Linear, bool]]:
    """Return the plain float32 layers that a forward pass calls, and whether their inputs are [rows, tokens, features];
    none of a model whose code takes no such pass."""
    called = dict[nn.Module, bool]()

    def record(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        called[layer] = inputs[0].shape[:-1] == (1, len(TRIED))

    plain = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear}
    hooks = [layer.register_forward_pre_hook(record) for layer in plain.values()]
    try:
        model(input_ids=torch.tensor([TRIED]))
    except OF_MODELS as error:
        if is_out_of_memory(error):
            raise
        return {}
    finally:
        for hook in hooks:
            hook.remove()
    found = {name: layer for name, layer in plain.items() if layer in called and _is_plain(layer.weight)}
    return {name: (layer, called[layer]) for name, layer in found.items()}


def _is_plain(weight: torch.Tensor) -> bool:
    """Return whether a weight has its values in float32. A quantizer's says so, too, and is of a class of its own."""
    return type(weight) is nn.Parameter and weight.dtype == torch.float32
