"""What the chat and classifier workers will use of a device that they share with the image worker. Pure."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

CONTEXT_BYTES: Final = 2**29  # of a process on a GPU: CUDA's context and the libraries' workspaces


def worker_bytes(folders: Iterable[Path]) -> int:
    """A worker with these checkpoints, as large as their files, without a KV cache. 0 for one that has none and so does
    not run. Folders that are not there count nothing: loading them says so.
    """
    listed = set(folders)
    files = (file for folder in listed for file in folder.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) + CONTEXT_BYTES if listed else 0
