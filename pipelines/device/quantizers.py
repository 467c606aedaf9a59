"""The libraries that quantize weights while they are loaded, by the value of `quantize` in the catalog."""

from importlib import import_module
from typing import Any, Final

from pipelines.checkpoints.errors import CheckpointError
from pipelines.protocol.images import Quantize
from pipelines.protocol.machine import packages_command

LIBRARIES: Final = {
    "nf4": ("bitsandbytes",),
    "int8": ("torchao",),
    "int4": ("torchao", "mslk-cuda"),
}  # as pip names them


def quantizing_config(library: Any, quantize: Quantize, key: str) -> Any:
    """Return the config by which a library, diffusers or transformers, quantizes weights while it loads them. Raises
    CheckpointError for a value of this key whose packages are not installed."""
    try:
        if quantize == "nf4":
            import_module("bitsandbytes")
            return library.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        return library.TorchAoConfig(_torchao_config(quantize))
    except ImportError as error:
        packages = LIBRARIES[quantize]
        needs = f"{quantize!r} needs {' and '.join(packages)}: {packages_command(packages)}"
        raise CheckpointError(f"{key}: {needs}") from error


def _torchao_config(quantize: Quantize) -> Any:
    from torchao.quantization import (  # type: ignore[import-not-found,unused-ignore]
        Int4WeightOnlyConfig,
        Int8WeightOnlyConfig,
    )

    if quantize == "int4":
        import mslk  # type: ignore[import-not-found,unused-ignore]  # noqa: F401  # torchao's kernels for it
    return Int8WeightOnlyConfig() if quantize == "int8" else Int4WeightOnlyConfig()
