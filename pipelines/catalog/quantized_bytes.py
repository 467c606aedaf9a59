"""The bytes of a denoiser's tensors once they are quantized, by their names and shapes in a file's header."""

import re
from typing import Final

from pipelines.catalog.weight_headers import Tensor
from pipelines.protocol.images import Quantize

# Embedders, norms with their modulation, and the last layer: few multiplications, and the whole image depends on them
SENSITIVE: Final = re.compile(
    r"embed|norm|time|modulation|_mod\.|adaln|guidance|proj(ector|ection)|^\w+_in$|^proj_out$"
    r"|attentions\.\d+\.proj_(in|out)$|^final_layer|^conv_"
)
ITEM_BYTES: Final[dict[Quantize, float]] = {"int8": 1.0, "int4": 0.6, "nf4": 0.6}  # with their share of the scales


def quantized_bytes(tensor: Tensor, quantize: Quantize, item_bytes: float) -> float:
    """Return a tensor's bytes on the device; `item_bytes` is a weight's that is not quantized.

    "fp8" and "float8" leave out sensitive layers. These may be a quarter of the weights: large denoisers take 1.28 to
    1.33 bytes a weight in fp8, and 1.03 where all blocks share their modulation.
    """
    if quantize in {"fp8", "float8"}:
        sides = len(tensor.shape)
        computed = sides == 2 or (sides > 2 and quantize == "float8")  # fp8 has no convolutions
        plain = not computed or SENSITIVE.search(tensor.name.removesuffix(".weight"))
        return tensor.weights * (item_bytes if plain else 1.0)
    return tensor.weights * ITEM_BYTES.get(quantize, item_bytes)
