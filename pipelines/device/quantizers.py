"""The libraries that quantize weights while they are loaded, by the value of `quantize` in the catalog."""

from typing import Any, Final

from pipelines.catalog.checkpoint_files import CheckpointError
from pipelines.protocol.images import Quantize

LIBRARIES: Final = {"nf4": ("bitsandbytes",), "int8": ("torchao",), "int4": ("torchao", "mslk")}
NF4: Final = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}  # of bitsandbytes


def torchao_config(quantize: Quantize) -> Any:
    """Return torchao's config for 8 or 4 bits a weight. Raises ImportError."""
    from torchao.quantization import (  # type: ignore[import-not-found,unused-ignore]
        Int4WeightOnlyConfig,
        Int8WeightOnlyConfig,
    )

    if quantize == "int4":
        import mslk  # type: ignore[import-not-found,unused-ignore]  # noqa: F401  # torchao's kernels for it
    return Int8WeightOnlyConfig() if quantize == "int8" else Int4WeightOnlyConfig()


def lacking(key: str, quantize: Quantize) -> CheckpointError:
    """Return the error of a value of this key whose libraries are not installed."""
    libraries = LIBRARIES[quantize]
    needs = f"{quantize!r} needs {' and '.join(libraries)}: pip install {' '.join(libraries)}"
    return CheckpointError(f"{key}: {needs}")
