"""Text encoders and codecs that several checkpoints have in common: those of one base folder are in memory once."""

import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from pipelines.checkpoints.classes.index import denoiser_name
from pipelines.checkpoints.folder.versions import files_version
from pipelines.protocol.images import CheckpointSpec

Origin = tuple[Path, str]  # a folder and its version
Key = tuple[Path, str, str, torch.dtype, str, bool]  # the origin, component, dtype, device, vae_tiling
Sizes = Mapping[int, int]  # bytes of a component, by its identity


class SharedParts:
    """The loaded components of folders, which checkpoints share. Each stays for as long as some checkpoint uses it."""

    def __init__(self) -> None:
        self._parts: weakref.WeakValueDictionary[Key, torch.nn.Module] = weakref.WeakValueDictionary()

    def find(
        self, spec: CheckpointSpec, origin: Origin | None, dtype: torch.dtype, device: torch.device
    ) -> dict[str, torch.nn.Module]:
        """Return the components that are on the device already, by name; none without an origin."""
        if origin is None:
            return {}
        own = (*origin, dtype, device.type, spec.runtime.vae_tiling)
        return {
            key[2]: part
            for key, part in list(self._parts.items())
            if key[2] not in dict(spec.parts) and (*key[:2], *key[3:]) == own and _device(part).type == device.type
        }

    def keep(
        self,
        spec: CheckpointSpec,
        origin: Origin | None,
        dtype: torch.dtype,
        device: torch.device,
        components: Mapping[str, Any],
    ) -> None:
        """Offer a loaded checkpoint's components to later ones, all but its denoiser. `origin` is from before they were
        read: files may have been replaced meanwhile."""
        if origin is None:
            return
        denoiser = denoiser_name(dict(components))
        for name, part in components.items():
            if isinstance(part, torch.nn.Module) and name != denoiser and name not in dict(spec.parts):
                self._parts[(*origin, name, dtype, device.type, spec.runtime.vae_tiling)] = part


def sizes_of(parts: Iterable[Any]) -> Sizes:
    """Return the bytes of each module."""
    modules = [part for part in parts if isinstance(part, torch.nn.Module)]
    return {id(part): sum(weight.nbytes for weight in (*part.parameters(), *part.buffers())) for part in modules}


def shared_bytes(holders: Iterable[Sizes]) -> int:
    """Return the bytes of components that more than one of the holders have, beyond the first."""
    seen: set[int] = set()
    twice = 0
    for sizes in holders:
        twice += sum(size for part, size in sizes.items() if part in seen)
        seen |= sizes.keys()
    return twice


def origin_of(spec: CheckpointSpec) -> Origin | None:
    """Return the folder that the components come from, and its version now. None if offloading hooks, other devices or
    adapters change them."""
    runtime = spec.runtime
    folder = spec.base or spec.path
    if (
        runtime.offload != "none"
        or runtime.parallel == "encoders"
        or runtime.loras
        or runtime.lora_folder is not None
        or runtime.embedding_folder is not None
        or not folder.is_dir()
    ):
        return None
    return folder, files_version([folder])


def _device(part: torch.nn.Module) -> torch.device:
    return next((weight.device for weight in part.parameters()), torch.device("meta"))
