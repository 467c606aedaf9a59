"""What computes here: the device and the versions of the libraries, which records of measurements belong to."""

import importlib.metadata
import platform
from typing import Final

import torch

# What draws, or computes a part of it where it is installed
LIBRARIES: Final = (
    "torch", "torchvision", "diffusers", "transformers", "accelerate", "peft", "safetensors", "tokenizers", "numpy",
    "pillow", "torchao", "bitsandbytes", "gguf", "triton", "xformers", "sageattention", "flash-attn", "flash-attn-3",
    "flash-attn-4", "amd-aiter",
)  # fmt: skip


def describe_device(device: torch.device) -> str:
    """Return the device's name with what its kernels depend on."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name} {properties.major}.{properties.minor} {properties.total_memory} {torch.version.cuda}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {capability} {torch.get_num_threads()} threads"


def library_versions() -> dict[str, str]:
    """Return the version of each library, "-" for those that are not installed, and Python's."""
    return {**{name: _version(name) for name in LIBRARIES}, "python": platform.python_version()}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "-"
