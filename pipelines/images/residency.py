"""Which checkpoints are in memory. Loaded once, shared by every model that names them, gone by least recent use.

On a GPU a checkpoint that has to leave the device waits in host memory while there is room, and comes back from there.
What is decided is decided on the event loop; weights move on a thread, for one checkpoint at a time.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from pipelines.catalog.checkpoint_files import CheckpointError, estimate_bytes
from pipelines.device.dtypes import compute_dtype
from pipelines.device.memory import free_memory
from pipelines.device.openmp import compute
from pipelines.images.checkpoint import Checkpoint, load_checkpoint
from pipelines.images.previews import PreviewMap
from pipelines.protocol.images import CheckpointSpec, Runtime

WeightsKey = tuple[Path, Path | None, Runtime, int]
HOST = torch.device("cpu")


class NoRoom(Exception):
    """The checkpoint fits once something that is in use has left."""


@dataclass(slots=True)
class Resident:
    """One checkpoint in memory. `users` are the runs that need it where it is."""

    checkpoint: Checkpoint
    bytes: int
    on_device: bool
    users: int = 0
    used_at: float = 0.0
    has_drawn: bool = False
    previews: PreviewMap = field(default_factory=PreviewMap)

    def seen_as(self, spec: CheckpointSpec) -> Checkpoint:
        """The same weights with a spec's own sampling."""
        return replace(self.checkpoint, spec=spec)


class Residency:
    """The checkpoints in memory, within a budget in bytes for the device and one for the host."""

    def __init__(self, device: torch.device, device_bytes: int, host_bytes: int, boundary: Callable[..., None]) -> None:
        self._device = device
        self._budget = {True: device_bytes, False: host_bytes if device.type != "cpu" else 0}  # by on_device
        self._boundary = boundary
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._residents: dict[WeightsKey, Resident] = {}
        self._loading: dict[WeightsKey, asyncio.Task[Resident]] = {}
        self._one_load = asyncio.Lock()  # so that room is reckoned with what is there
        self._named: set[WeightsKey] | None = None  # by the catalog; None until it has changed

    def find(self, spec: CheckpointSpec) -> Resident | None:
        """The checkpoint, if it is on the device and ready to draw."""
        resident = self._residents.get(weights_key(spec))
        return resident if resident and resident.on_device and weights_key(spec) not in self._loading else None

    def use(self, resident: Resident) -> None:
        """A run begins with it: it stays where it is until `done`."""
        resident.users += 1
        resident.used_at = time.monotonic()

    def done(self, resident: Resident) -> None:
        """The run has ended."""
        resident.users -= 1
        resident.used_at = time.monotonic()

    async def load(self, spec: CheckpointSpec) -> Resident:
        """Have it on the device. Raises CheckpointError, or NoRoom while what is in use leaves too little."""
        key = weights_key(spec)
        if found := self.find(spec):
            return found
        if key not in self._loading:
            task = self._loading[key] = asyncio.create_task(self._load(key, spec))
            task.add_done_callback(lambda _: self._loading.pop(key, None))
        return await asyncio.shield(self._loading[key])

    def drop_unused(self) -> int:
        """Let go of everything on the device that no run uses; how many there were. For when memory has run out."""
        unused = [key for key, resident in self._residents.items() if resident.on_device and not resident.users]
        self._move_away([left for key in unused if (left := self._leave(key))])
        return len(unused)

    def keep(self, named: Iterable[CheckpointSpec], wanted: Iterable[CheckpointSpec]) -> None:
        """The catalog names these now, and jobs want those. Let go of all others that no run uses."""
        self._named = {weights_key(spec) for spec in named}
        kept = self._named | {weights_key(spec) for spec in wanted} | set(self._loading)
        gone = [key for key, resident in self._residents.items() if key not in kept and not resident.users]
        for key in gone:
            del self._residents[key]
        if gone:
            free_memory(self._device)

    async def _load(self, key: WeightsKey, spec: CheckpointSpec) -> Resident:
        loop = asyncio.get_running_loop()
        async with self._one_load:
            known = self._residents.get(key)
            needed = known.bytes if known else await loop.run_in_executor(self._loader, self._estimate, spec)
            leaving = [left for gone in self._in_the_way(needed, spec, on_device=True) if (left := self._leave(gone))]
            await loop.run_in_executor(self._loader, self._move_away, leaving)
            resident = await loop.run_in_executor(self._loader, compute, self._bring, known, spec)
            resident.used_at = time.monotonic()
            self._residents[key] = resident
        return resident

    def _estimate(self, spec: CheckpointSpec) -> int:
        return estimate_bytes(spec, compute_dtype(spec.runtime.dtype, self._device).itemsize)

    def _bring(self, known: Resident | None, spec: CheckpointSpec) -> Resident:
        """On the loader's thread: from the host or from the disk."""
        if known is not None:
            known.checkpoint.move(self._device)
            known.on_device = True
            return known
        checkpoint = load_checkpoint(spec, self._device, self._boundary)
        return Resident(checkpoint, checkpoint.weights_bytes, on_device=True)

    def _move_away(self, leaving: list[Resident]) -> None:
        """To the host, and the memory of what is gone with it. They are not found any more, so nobody uses them."""
        for resident in leaving:
            resident.checkpoint.move(HOST)
        free_memory(self._device)

    def _in_the_way(self, needed: int, spec: CheckpointSpec, *, on_device: bool) -> list[WeightsKey]:
        """What has to leave for it. Raises CheckpointError, or NoRoom while too much of it is in use."""
        budget = self._budget[on_device]
        if needed > budget:
            place = "device" if on_device else "host"
            raise CheckpointError(
                f"{spec.path} takes {needed / 2**30:.1f} GiB, and the {place}'s budget is {budget / 2**30:.1f} GiB. "
                "runtime.offload or runtime.quantize make it smaller."
            )
        there = {key: resident for key, resident in self._residents.items() if resident.on_device == on_device}
        staying = {key: resident for key, resident in there.items() if self._stays(key, resident, spec)}
        if needed + sum(resident.bytes for resident in staying.values()) > budget:
            names = ", ".join(resident.checkpoint.spec.name for resident in staying.values())
            raise CheckpointError(
                f"{spec.path} takes {needed / 2**30:.1f} GiB, for which the budget of {budget / 2**30:.1f} GiB has no "
                f"room beside what runtime.resident keeps there: {names}."
            )
        used = sum(resident.bytes for resident in there.values())
        leaving: list[WeightsKey] = []
        for key in sorted(there.keys() - staying.keys(), key=lambda key: _last_to_leave(there[key])):
            if used + needed > budget and not there[key].users:
                used -= there[key].bytes
                leaving.append(key)
        if used + needed > budget:
            raise NoRoom
        return leaving

    def _stays(self, key: WeightsKey, resident: Resident, spec: CheckpointSpec) -> bool:
        """Whether it never leaves for `spec`: it is `resident`, the catalog names it, and this is no exchange."""
        own = resident.checkpoint.spec
        named = self._named is None or key in self._named
        return own.runtime.resident and named and not takes_place_of(spec, own)

    def _leave(self, key: WeightsKey) -> Resident | None:
        """Out of the device's books. What is returned has to be moved: the host has room for it."""
        resident = self._residents[key]
        runtime = resident.checkpoint.spec.runtime
        if resident.on_device and runtime.offload == "none" and runtime.quantize == "none":
            try:
                gone = self._in_the_way(resident.bytes, resident.checkpoint.spec, on_device=False)
            except (CheckpointError, NoRoom):
                pass  # it is read from the disk next time
            else:
                for other in gone:
                    del self._residents[other]
                resident.on_device = False
                return resident
        del self._residents[key]
        return None


def weights_key(spec: CheckpointSpec) -> WeightsKey:
    """Specs that name the same files in the same way share the weights; the sampling is each spec's own."""
    return spec.path, spec.config, spec.runtime, spec.version


def takes_place_of(new: CheckpointSpec, old: CheckpointSpec) -> bool:
    """Whether the one may be there instead of the other, while a server exchanges them: other files for a catalog file
    that says the same else, or the same files under other settings."""
    as_old = replace(new, name=old.name, path=old.path, version=old.version, sampling=old.sampling)
    return new.path == old.path or as_old == old


def _last_to_leave(resident: Resident) -> tuple[bool, float]:
    """The least recently used goes first, and what is `resident` only when nothing else is left."""
    return resident.checkpoint.spec.runtime.resident, resident.used_at
