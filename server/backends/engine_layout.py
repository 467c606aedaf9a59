"""Which workers there are, and the device of each: one image worker for each GPU, or what DARKROOM_ENGINES says.

```toml
[[image]]
device = "cuda:0"                # as nvidia-smi counts; or "GPU-5c1d..." (also just its beginning), or "cpu"
name   = "large"                 # in metrics and logs; image-0, image-1, ... if it is left out
models = ["flux-image-1"]        # it draws these alone; any model if it is left out

[[image]]
device = "cuda:1"

[replicas]                       # how many workers load a model's checkpoint at start
"flux-image-1" = 1               # as many as have room if it is left out

[chat]
device = "cuda:1"                # the last image worker's if it is left out; as for [classify]
```
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pipelines.catalog.toml import Strict, error_at, read_toml
from pipelines.protocol.messages import DeviceChoice
from server.backends.gpus import Gpu
from server.errors import StartError

DeviceName = Annotated[str, Field(pattern=r"^(cpu|cuda:\d+|(GPU|MIG)-[0-9a-fA-F-]+)$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class ImageTable(Strict):
    """One image worker."""

    device: DeviceName
    name: Name | None = None
    models: Annotated[list[str], Field(min_length=1)] | None = None


class WorkerTable(Strict):
    """The chat worker, or the classifier worker."""

    device: DeviceName


class EnginesFile(Strict):
    """The file that DARKROOM_ENGINES names."""

    image: Annotated[list[ImageTable], Field(min_length=1)]
    replicas: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    chat: WorkerTable | None = None
    classify: WorkerTable | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """One worker's device. `gpu` is None on the CPU, and where the worker looks for a GPU by itself."""

    name: str
    device: DeviceChoice
    gpu: Gpu | None = None
    models: frozenset[str] | None = None  # that an image worker draws; None for any
    environment: Mapping[str, str] = field(default_factory=dict)

    def shares_device(self, other: "Slot") -> bool:
        return (self.device, self.gpu) == (other.device, other.gpu)


@dataclass(frozen=True, slots=True)
class Layout:
    """Every worker of a server. `replicas` is by model."""

    images: tuple[Slot, ...]
    chat: Slot
    classify: Slot
    replicas: Mapping[str, int] = field(default_factory=dict)


def automatic_layout(device: DeviceChoice, gpus: Sequence[Gpu]) -> Layout:
    """An image worker for each GPU, and the others on the last one. With one GPU or none, each worker looks for its
    device by itself."""
    if device == "cpu" or len(gpus) < 2:
        return Layout((Slot("image", device),), Slot("chat", device), Slot("classify", device))
    images = tuple(_on_gpu(f"image-{index}", gpu) for index, gpu in enumerate(gpus))
    return Layout(images, _on_gpu("chat", gpus[-1]), _on_gpu("classify", gpus[-1]))


def read_layout(path: Path, gpus: Sequence[Gpu], models: Collection[str], cores: int) -> Layout:
    """What the file says. `cores` are divided between image workers on the CPU. Raises StartError with every error."""
    errors: list[str] = []
    file = read_toml(path, EnginesFile, errors)
    if file is None:
        raise StartError("DARKROOM_ENGINES: " + "\n".join(errors))
    on_cpu = [index for index, table in enumerate(file.image) if table.device == "cpu"]
    images: list[Slot] = []
    for index, table in enumerate(file.image):
        slot = _slot(table.name or f"image-{index}", table.device, gpus)
        if slot is None:
            errors.append(error_at(path, ("image", index, "device"), _no_gpu(table.device, gpus)))
            continue
        if slot.gpu is not None and any(slot.shares_device(other) for other in images):
            errors.append(error_at(path, ("image", index, "device"), f"{table.device} has an image worker already"))
        if slot.name in {other.name for other in images}:
            errors.append(error_at(path, ("image", index, "name"), f"{slot.name!r} is another worker's name too"))
        threads = _threads(on_cpu.index(index), len(on_cpu), cores) if table.device == "cpu" else {}
        named = frozenset(table.models) if table.models is not None else None
        images.append(Slot(slot.name, slot.device, slot.gpu, named, {**slot.environment, **threads}))
        for model in sorted((named or frozenset()) - set(models)):
            errors.append(error_at(path, ("image", index, "models"), _no_model(model, models)))
    errors += [error_at(path, ("replicas", m), _no_model(m, models)) for m in file.replicas if m not in models]
    chat = _other(path, "chat", file.chat, images, gpus, errors)
    classify = _other(path, "classify", file.classify, images, gpus, errors)
    if errors:
        raise StartError("DARKROOM_ENGINES: " + "\n".join(errors))
    return Layout(tuple(images), chat, classify, file.replicas)


def _other(
    path: Path, kind: str, table: WorkerTable | None, images: Sequence[Slot], gpus: Sequence[Gpu], errors: list[str]
) -> Slot:
    found = _slot(kind, table.device, gpus) if table is not None else None
    if table is not None and found is None:
        errors.append(error_at(path, (kind, "device"), _no_gpu(table.device, gpus)))
    if found is None and images and (gpu := images[-1].gpu) is not None:
        return _on_gpu(kind, gpu)
    return found or Slot(kind, "cpu")


def _slot(name: str, device: str, gpus: Sequence[Gpu]) -> Slot | None:
    """None if there is no such GPU."""
    if device == "cpu":
        return Slot(name, "cpu")
    if device.startswith("cuda:"):
        found = list(gpus[int(device.removeprefix("cuda:")) :][:1])
    else:
        found = [gpu for gpu in gpus if gpu.uuid.startswith(device)]
    return _on_gpu(name, found[0]) if found else None


def _on_gpu(name: str, gpu: Gpu) -> Slot:
    """By UUID: indices mean other GPUs to CUDA than to nvidia-smi, and change when one fails."""
    return Slot(name, "cuda", gpu, environment={"CUDA_VISIBLE_DEVICES": gpu.uuid})


def _threads(position: int, workers: int, cores: int) -> dict[str, str]:
    """One of several workers on the CPU gets its share of the cores, unless the operator has set the number."""
    if workers == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cores // workers + (position < cores % workers)))}


def _no_gpu(device: str, gpus: Sequence[Gpu]) -> str:
    known = ", ".join(f"cuda:{index} ({gpu.uuid}, {gpu.name})" for index, gpu in enumerate(gpus))
    return f"there is no {device}; this machine has {known or 'no GPU that NVML knows'}, and cpu"


def _no_model(name: str, models: Collection[str]) -> str:
    return f"{name!r} is not an image model; expected one of {', '.join(models)}"
