"""Which workers there are, and the devices of each: one image worker for each GPU, or for as many as a checkpoint takes
(`[runtime] gpus`), or what DARKROOM_ENGINES says.

```toml
[[image]]
device = "cuda:0"                # as nvidia-smi counts; or "GPU-5c1d..." (also just its beginning), or "cpu"
name   = "large"                 # in metrics and logs; image-0, image-1, ... if it is left out
models = ["flux-image-1"]        # it draws these alone; any model if it is left out

[[image]]
devices = ["cuda:1", "cuda:2"]   # a group, for checkpoints with gpus = 2

[replicas]                       # how many workers load a model's checkpoint at start
"flux-image-1" = 1               # as many as have room if it is left out

[chat]
device = "cuda:2"                # the last image worker's if it is left out; as for [classify]
```
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from pipelines.checkpoints.memory.shares import weights_budget
from pipelines.protocol.messages import DeviceChoice
from server.backends.gpus import Gpu, find_uuid
from server.catalog.toml import Strict, error_at, read_toml
from server.errors import StartError

VARIABLE: Final = "GLIBC_TUNABLES"
TUNABLES: Final = {
    "mmap_max": 0,  # a block in a mapping of its own would be unmapped when it is freed
    "trim_threshold": 2**62,
    # torch's aligned blocks leave crumbs, which a thread's cache would keep between the freed ones: a 4K image had a
    # peak of 646 MiB with them, and 429 without
    "tcache_count": 0,
}


def heap_on_cpu() -> Mapping[str, str]:
    """Return the environment variables that tune glibc's malloc for a worker on a CPU; none where the operator has set
    tunables."""
    if VARIABLE in os.environ:
        return {}
    return {VARIABLE: ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())}


DeviceName = Annotated[str, Field(pattern=r"^(cpu|cuda:\d+|(GPU|MIG)-[0-9a-fA-F-]+)$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class ImageTable(Strict):
    """One image worker, with one device or several."""

    device: DeviceName | None = None
    devices: Annotated[list[DeviceName], Field(min_length=1, max_length=16)] | None = None
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


INSTANCES: Final = "instances of a divided GPU (MIG) have a worker each: CUDA shows a process one of them alone"


@dataclass(frozen=True, slots=True)
class Slot:
    """One worker's devices. `gpus` are none on the CPU, and where the worker looks for a GPU by itself; there `size` is
    how many processes it may have, or how many GPUs it may use."""

    name: str
    device: DeviceChoice
    gpus: tuple[Gpu, ...] = ()
    size: int = 1
    models: frozenset[str] | None = None  # that an image worker draws; None for any
    environment: Mapping[str, str] = field(default_factory=dict)

    def shares_device(self, other: "Slot") -> bool:
        """Return whether both workers compute on the CPU, or have a GPU in common."""
        return self.device == other.device and (self.gpus == other.gpus or bool(set(self.gpus) & set(other.gpus)))


@dataclass(frozen=True, slots=True)
class Layout:
    """Every worker of a server. `replicas` is by model."""

    images: tuple[Slot, ...]
    chat: Slot
    classify: Slot
    replicas: Mapping[str, int] = field(default_factory=dict)


def automatic_layout(
    device: DeviceChoice, gpus: Sequence[Gpu], needs: Collection[int] = (1,), others_bytes: int = 0
) -> Layout:
    """Plan image workers for the checkpoints' numbers of GPUs (`needs`) on all GPUs, and the others, whose weights take
    `others_bytes`, on the last one that has room for them. Without a GPU, each worker looks for its device by itself. A
    GPU that is there is not replaced by the CPU."""
    if device == "cpu" or not gpus:
        size = max(needs, default=1)
        (environment,) = _cpu_environments([size], len(os.sched_getaffinity(0)))
        image = Slot("image", device, size=size, environment=environment)
        return Layout((image,), Slot("chat", device), Slot("classify", device))
    left, images = [gpu for gpu in gpus if not gpu.is_instance], list[Slot]()
    instances = [gpu for gpu in gpus if gpu.is_instance]
    sizes = group_sizes(len(left), needs) if left else []
    left += instances
    for size in (*sizes, *(1 for _ in instances)):
        taken, left = left[:size], left[size:]
        images.append(_on_gpus("image" if len(gpus) == 1 else f"image-{len(images)}", taken))
    roomy = [gpu for gpu in gpus if others_bytes <= weights_budget(gpu.total_bytes, gpu.total_bytes, 0)]
    beside = roomy[-1:] or [max(gpus, key=lambda gpu: gpu.total_bytes)]
    return Layout(tuple(images), _on_gpus("chat", beside), _on_gpus("classify", beside))


def group_sizes(gpus: int, needs: Collection[int]) -> list[int]:
    """Return the numbers of GPUs of image workers, so that each number that checkpoints need has workers: in turns, the
    largest first, until no more fit. A checkpoint can be drawn by a worker with more GPUs than it needs."""
    sizes: list[int] = []
    fitting = sorted({need for need in needs if need <= gpus}, reverse=True) or [1]
    while (left := gpus - sum(sizes)) >= min(fitting):
        for need in fitting:
            if need <= left:
                sizes.append(need)
                left -= need
    return sizes


def read_layout(path: Path, gpus: Sequence[Gpu], models: Collection[str], cores: int) -> Layout:
    """Read the layout from a file. `cores` are divided between image workers on the CPU. Raises StartError with every
    error."""
    errors: list[str] = []
    file = read_toml(path, EnginesFile, errors)
    if file is None:
        raise StartError("DARKROOM_ENGINES: " + "\n".join(errors))
    images: list[Slot] = []
    for index, table in enumerate(file.image):
        slot = _image_slot(path, index, table, gpus, images, errors)
        if slot is None:
            continue
        if slot.name in {other.name for other in images}:
            errors.append(error_at(path, ("image", index, "name"), f"{slot.name!r} is another worker's name too"))
        images.append(slot)
        for model in sorted((slot.models or frozenset()) - set(models)):
            errors.append(error_at(path, ("image", index, "models"), _no_model(model, models)))
    errors += [error_at(path, ("replicas", m), _no_model(m, models)) for m in file.replicas if m not in models]
    chat = _other_slot(path, "chat", file.chat, images, gpus, errors)
    classify = _other_slot(path, "classify", file.classify, images, gpus, errors)
    if errors:
        raise StartError("DARKROOM_ENGINES: " + "\n".join(errors))
    return Layout(_share_cores(images, cores), chat, classify, file.replicas)


def _image_slot(
    path: Path, index: int, table: ImageTable, gpus: Sequence[Gpu], others: Sequence[Slot], errors: list[str]
) -> Slot | None:
    """Build an image worker's slot; None, with an error, for devices that are not there or not free. It goes without
    those that can't be used."""
    key = "devices" if table.devices is not None else "device"
    listed = table.devices or ([table.device] if table.device is not None else [])
    models = frozenset(table.models) if table.models is not None else None
    name = table.name or f"image-{index}"
    if (table.device is None) == (table.devices is None):
        errors.append(error_at(path, ("image", index), "expected one of `device` and `devices`"))
        return None
    if set(listed) == {"cpu"}:
        return Slot(name, "cpu", size=len(listed), models=models)
    found: list[Gpu] = []
    for device in listed:
        gpu = _find_gpu(device, gpus)
        if gpu is None:
            message = "one worker has GPUs or the CPU, not both" if device == "cpu" else _no_gpu(device, gpus)
            errors.append(error_at(path, ("image", index, key), message))
            return None
        if gpu.problem is None and (gpu in found or any(gpu in other.gpus for other in others)):
            errors.append(error_at(path, ("image", index, key), f"{device} has an image worker already"))
        found.append(gpu)
    if len(found) > 1 and any(gpu.is_instance for gpu in found):
        errors.append(error_at(path, ("image", index, key), INSTANCES))
    return replace(_on_gpus(name, found), models=models)


def _other_slot(
    path: Path, kind: str, table: WorkerTable | None, images: Sequence[Slot], gpus: Sequence[Gpu], errors: list[str]
) -> Slot:
    found = _find_gpu(table.device, gpus) if table is not None else None
    if found is not None:
        return _on_gpus(kind, [found])
    if table is not None and table.device != "cpu":
        errors.append(error_at(path, (kind, "device"), _no_gpu(table.device, gpus)))
    if table is None and images and images[-1].device == "cuda":
        beside = next((slot for slot in reversed(images) if slot.gpus), images[-1])
        return _on_gpus(kind, beside.gpus[-1:])
    return Slot(kind, "cpu")


def _find_gpu(device: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU of this name; None if there is no such GPU."""
    if device.startswith("cuda:"):
        return next(iter(gpus[int(device.removeprefix("cuda:")) :]), None)
    return find_uuid(device, gpus)


def _on_gpus(name: str, gpus: Sequence[Gpu]) -> Slot:
    """Return a worker's slot on those of the GPUs that can be used. Without any, its worker says that it has none."""
    usable = [gpu for gpu in gpus if gpu.problem is None]
    return Slot(name, "cuda", tuple(usable), max(1, len(usable)), environment=_show(usable))


def _show(gpus: Sequence[Gpu]) -> Mapping[str, str]:
    """Return the environment in which a worker sees these GPUs alone, by UUID: indices mean other GPUs to CUDA than to
    nvidia-smi, and change when one fails."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}


def _share_cores(images: Sequence[Slot], cores: int) -> tuple[Slot, ...]:
    """Give the workers on the CPU their part of the cores."""
    parts = iter(_cpu_environments([slot.size for slot in images if slot.device == "cpu"], cores))
    return tuple(replace(slot, environment=next(parts)) if slot.device == "cpu" else slot for slot in images)


def _cpu_environments(sizes: Sequence[int], cores: int) -> list[Mapping[str, str]]:
    """Return the environments of workers of so many processes on the CPU. They say how many threads each process has:
    all cores for one alone, and the operator's own number."""
    heap, processes = heap_on_cpu(), sum(sizes)
    if processes == 1 or "OMP_NUM_THREADS" in os.environ:
        return [heap for _ in sizes]
    return [
        {**heap, "OMP_NUM_THREADS": str(max(1, cores // processes + (size == 1 and position < cores % processes)))}
        for position, size in enumerate(sizes)
    ]


def _no_gpu(device: str, gpus: Sequence[Gpu]) -> str:
    known = ", ".join(f"cuda:{index} ({gpu.problem or f'{gpu.uuid}, {gpu.name}'})" for index, gpu in enumerate(gpus))
    return f"there is no {device}; this machine has {known or 'no GPU that NVML knows'}, and cpu"


def _no_model(name: str, models: Collection[str]) -> str:
    return f"{name!r} is not an image model; expected one of {', '.join(models)}"
