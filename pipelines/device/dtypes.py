"""What weights are loaded as."""

import torch

from pipelines.protocol.images import Dtype

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def compute_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """The catalog's choice on a device."""
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return DTYPES[dtype]
