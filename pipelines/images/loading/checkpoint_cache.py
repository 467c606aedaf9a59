"""Which checkpoints are in memory. Each is loaded once, shared by all models that name it, and evicted by LRU.

A checkpoint that is evicted from a GPU is offloaded to host memory while there is room, and restored from there.
Decisions are made on the event loop; weights move on a loader thread, one checkpoint at a time.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from pipelines.checkpoints.errors import CheckpointError, MemoryTaken
from pipelines.checkpoints.folder.versions import FileVersion
from pipelines.checkpoints.memory.device_bytes import Footprint, estimate_footprint
from pipelines.checkpoints.memory.shares import Room
from pipelines.checkpoints.work.estimate import WeightsKey, replaces, weights_key
from pipelines.device.failures import is_out_of_memory, watch_device
from pipelines.device.memory import (
    Budgets,
    available_bytes,
    compute_dtype,
    free_memory,
    free_on_failure,
    memory_taken,
)
from pipelines.device.openmp import run_and_release
from pipelines.images.denoising.merging import Sharing
from pipelines.images.denoising.previews import PreviewMap
from pipelines.images.loading import runtime_options
from pipelines.images.loading.checkpoint import Checkpoint
from pipelines.images.loading.load import load_checkpoint
from pipelines.images.loading.shared_parts import SharedParts, Sizes, origin_of, shared_bytes, sizes_of
from pipelines.images.parallel.group import Group
from pipelines.protocol.images import CheckpointSpec
from pipelines.protocol.messages import AdapterFit, CachedCheckpoint, CachedCheckpoints

GIB = 2**30
HOST = torch.device("cpu")
IDLE_S = 30.0  # without a run, after which memory that no tensor uses goes back to the device


class InsufficientMemory(Exception):
    """The checkpoint does not fit until a checkpoint in use can be evicted."""


class DeviceFull(InsufficientMemory):
    """It fits the budget, but the device ran out of memory. Only the end of a run makes room."""


@dataclass(slots=True)
class LoadedCheckpoint:
    """One checkpoint in memory. `ref_count` is the number of runs that use it; it is not evicted meanwhile."""

    checkpoint: Checkpoint
    bytes: int  # of the device, or of the host where it waits since it was evicted
    on_device: bool
    host_bytes: int = 0  # of weights that wait there for their turn on the device, since it is offloaded
    ref_count: int = 0
    used_at: float = 0.0
    warmed_up: bool = False  # it has drawn an image
    compiled_shapes: bool = False  # the shapes that it serves were drawn once, if it is compiled
    preview_map: PreviewMap = field(default_factory=PreviewMap)
    part_sizes: Sizes = field(default_factory=dict)  # of components that others may share


class CheckpointCache:
    """The checkpoints in memory, within budgets for the device and the host, which are weighed again for each load.
    `on_change` is called with them whenever they change."""

    def __init__(
        self,
        device: torch.device,
        budgets: Budgets,
        sharing: Sharing,
        on_change: Callable[[CachedCheckpoints], None] = lambda _: None,
        group: Group | None = None,
    ) -> None:
        self._device = device
        self._group = group or Group(device)
        self._on_change = on_change
        self._limits = budgets if device.type != "cpu" else replace(budgets, host_bytes=0)
        self._budgets = self._limits  # as they were weighed last
        self._sharing = sharing
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._loaded: dict[WeightsKey, LoadedCheckpoint] = {}
        self._shared = SharedParts()
        self._loading: dict[WeightsKey, asyncio.Task[LoadedCheckpoint]] = {}
        self._load_lock = asyncio.Lock()  # for one change at a time: a load goes by what is there when it begins
        self._idle_timer: asyncio.TimerHandle | None = None
        self._catalog_keys: set[WeightsKey] | None = None  # None until `unload_except` is called

    def find(self, spec: CheckpointSpec) -> LoadedCheckpoint | None:
        """Return the checkpoint, if it is on the device and ready."""
        loaded = self._loaded.get(weights_key(spec))
        ready = loaded and loaded.on_device and not loaded.checkpoint.adapters.weights_modified
        return loaded if ready and weights_key(spec) not in self._loading else None

    def acquire(self, loaded: LoadedCheckpoint) -> None:
        """Keep the checkpoint for a run that starts with it: it is not evicted until `release`."""
        loaded.ref_count += 1
        loaded.used_at = time.monotonic()
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def release(self, loaded: LoadedCheckpoint) -> None:
        """Count one run less that uses the checkpoint, which may be evicted once none does."""
        loaded.ref_count -= 1
        loaded.used_at = time.monotonic()
        if not any(each.ref_count for each in self._loaded.values()):
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._idle_timer = asyncio.get_running_loop().call_later(IDLE_S, self._release_unused_memory)

    def _release_unused_memory(self) -> None:
        """Release the memory that the allocator keeps of the largest image: other processes on the device can use it
        meanwhile."""
        self._loader.submit(watch_device, self._device, free_memory, self._device)

    async def load(self, spec: CheckpointSpec) -> LoadedCheckpoint:
        """Load a checkpoint onto the device. Raises CheckpointError, or InsufficientMemory while checkpoints in use
        block it."""
        key = weights_key(spec)
        if loaded := self.find(spec):
            return loaded
        if key not in self._loading:
            task = self._loading[key] = asyncio.create_task(self._load(key, spec))
            task.add_done_callback(lambda _: self._loading.pop(key, None))
        return await asyncio.shield(self._loading[key])

    async def free_memory(self) -> None:
        """Free memory, after an out-of-memory error or to sleep: forget kept prompts, evict every checkpoint that no
        run uses, and return unreferenced memory to the device. A load under way ends first: it may have found its
        components in one of them."""
        async with self._load_lock:
            await self._free_unused()

    async def _free_unused(self) -> None:
        for loaded in self._loaded.values():
            loaded.checkpoint.forget(in_use=loaded.ref_count > 0)
        unused = [key for key, each in self._loaded.items() if each.on_device and not each.ref_count]
        evicted = [victim for key in unused if (victim := self._evict(key))]
        self._announce()
        await asyncio.get_running_loop().run_in_executor(self._loader, self._offload, evicted)

    def unload_except(self, in_catalog: Iterable[CheckpointSpec], in_jobs: Iterable[CheckpointSpec]) -> None:
        """Drop every checkpoint that the catalog does not name and no job or run needs."""
        self._catalog_keys = {weights_key(spec) for spec in in_catalog}
        needed = self._catalog_keys | {weights_key(spec) for spec in in_jobs} | set(self._loading)
        dropped = [key for key, loaded in self._loaded.items() if key not in needed and not loaded.ref_count]
        for key in dropped:
            self._drop(key)
        if dropped:
            self._announce()
            self._loader.submit(watch_device, self._device, free_memory, self._device)

    def close(self) -> None:
        """End the loader's thread, after the work that waits for it, and the timer: nothing keeps the loaded
        checkpoints."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._loader.shutdown()

    def _announce(self) -> None:
        loaded = self._loaded.values()
        listed = [CachedCheckpoint(each.checkpoint.spec, each.bytes, each.on_device) for each in loaded]
        used = _used_bytes([each for each in loaded if each.on_device], {})
        self._on_change(CachedCheckpoints(tuple(listed), used, self._budgets.device_bytes))

    async def _load(self, key: WeightsKey, spec: CheckpointSpec) -> LoadedCheckpoint:
        loop = asyncio.get_running_loop()
        async with self._load_lock:
            on_host, known = self._without_spoiled(key)
            room = await loop.run_in_executor(self._loader, watch_device, self._device, self._weigh)
            if on_host:
                needed = Footprint(on_host.bytes)
            else:
                needed = await loop.run_in_executor(self._loader, self._estimate, spec, room)
            dtype = compute_dtype(spec.runtime.dtype, self._device)
            origin = await loop.run_in_executor(self._loader, origin_of, spec)
            shared = self._shared.find(spec, origin, dtype, self._device)
            self._check_room(needed, spec, room)
            evictions = self._select_evictions(needed.device_bytes, spec, {} if on_host else sizes_of(shared.values()))
            for_host = self._select_host_evictions(needed.host_bytes, spec, evictions)
            for dropped in for_host:
                self._drop(dropped)
            evicted = [victim for other in evictions if (victim := self._evict(other, needed.host_bytes))]
            if evictions or for_host:
                self._announce()  # loading may fail
            await loop.run_in_executor(self._loader, self._offload, evicted)
            loaded = await self._load_or_free(on_host, spec, room, needed.device_bytes)
            del shared  # it was held while others were evicted
            loaded.used_at = time.monotonic()
            loaded.checkpoint.adapters.known.update(known)
            self._loaded[key] = loaded
            self._announce()
        return loaded

    def _weigh(self) -> Room:
        """Weigh the budgets again, on the loader's thread, and return what a checkpoint may take: other programs come
        and go."""
        self._budgets = self._limits.weigh(self._device, _on_host_bytes(self._loaded.values()))
        return self._budgets.room(self._device)

    async def _load_or_free(
        self, on_host: LoadedCheckpoint | None, spec: CheckpointSpec, room: Room, needed_bytes: int
    ) -> LoadedCheckpoint:
        """Load the weights. If the device runs out of memory, as beside another program, free all that no run uses and
        try once more. Raises DeviceFull while runs use some, and MemoryTaken where others have what is needed."""
        loop = asyncio.get_running_loop()
        for is_last in (False, True):
            try:
                load = partial(self._load_weights, on_host, spec, room)
                return await loop.run_in_executor(self._loader, run_and_release, load)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                await self._free_unused()
                if is_last and not any(each.ref_count for each in self._loaded.values()):
                    left = self._free_bytes()
                    if needed_bytes > left:
                        raise memory_taken(str(spec.path), needed_bytes, left, self._device) from error
                    raise
        raise DeviceFull

    def _without_spoiled(
        self, key: WeightsKey
    ) -> tuple[LoadedCheckpoint | None, Mapping[FileVersion, AdapterFit | str]]:
        """Return the entry in memory of these weights, unless an adapter has spoiled them: a spoiled entry is dropped,
        and the findings about adapters are returned in its place. Raises InsufficientMemory while a run uses it."""
        loaded = self._loaded.get(key)
        if loaded is None or not loaded.checkpoint.adapters.weights_modified:
            return loaded, {}
        if loaded.ref_count:
            raise InsufficientMemory
        self._drop(key)
        return None, loaded.checkpoint.adapters.known

    def _estimate(self, spec: CheckpointSpec, room: Room) -> Footprint:
        runtime, _ = runtime_options.resolve(spec, self._device, room, self._group.size)
        return estimate_footprint(replace(spec, runtime=runtime), compute_dtype(runtime.dtype, self._device).itemsize)

    def _load_weights(self, on_host: LoadedCheckpoint | None, spec: CheckpointSpec, room: Room) -> LoadedCheckpoint:
        """Load weights on the loader thread: from host memory or from the disk."""
        if on_host is not None:
            try:
                watch_device(self._device, on_host.checkpoint.move, self._device)
            except Exception:
                watch_device(self._device, on_host.checkpoint.move, HOST)  # what has arrived before it failed
                raise
            on_host.on_device = True
            return on_host
        arguments = spec, self._device, self._sharing, self._shared, room, self._group
        checkpoint = free_on_failure(self._device, load_checkpoint, *arguments)
        return LoadedCheckpoint(
            checkpoint, checkpoint.weights_bytes, True, checkpoint.host_bytes, part_sizes=checkpoint.part_sizes
        )

    def _offload(self, evicted: list[LoadedCheckpoint]) -> None:
        """Move evicted checkpoints to the host and free the device's memory. `find` does not return them any more."""
        for loaded in evicted:
            watch_device(self._device, loaded.checkpoint.move, HOST)
        watch_device(self._device, free_memory, self._device)

    def _check_room(self, needed: Footprint, spec: CheckpointSpec, room: Room) -> None:
        """Check that a checkpoint would fit if nothing else of this worker were in memory. Raises CheckpointError, and
        MemoryTaken where it is others who have the memory now."""
        if room.holds(needed.device_bytes, needed.host_bytes):
            return
        alone = Room(self._limits.alone_bytes(self._device), self._limits.offload_bytes, room.is_unified)
        if not alone.holds(needed.device_bytes, needed.host_bytes):
            raise CheckpointError(_misfit(needed, spec, alone))
        if needed.device_bytes > room.device_bytes or room.is_unified:
            raise memory_taken(str(spec.path), needed.device_bytes, room.device_bytes, self._device)
        raise MemoryTaken(
            f"{spec.path} takes {needed.host_bytes / GIB:.1f} GiB of the host, which has {room.host_bytes / GIB:.1f} "
            f"GiB left for weights: other programs have the rest of {alone.host_bytes / GIB:.1f} GiB. It is loaded "
            "once they have given it back."
        )

    def _select_evictions(self, size: int, spec: CheckpointSpec, new: Sizes) -> list[WeightsKey]:
        """Select the checkpoints to evict from the device for `size` bytes, of which components with the sizes `new`
        are there already. Raises CheckpointError, or InsufficientMemory while too much is in use."""
        budget = self._budgets.device_bytes
        present = {key: loaded for key, loaded in self._loaded.items() if loaded.on_device}
        pinned = {key: loaded for key, loaded in present.items() if self._is_pinned(key, loaded, spec)}
        if size + _used_bytes(pinned.values(), new) > budget:
            raise CheckpointError(_no_room(size, spec, budget, pinned.values()))
        used = _used_bytes(present.values(), new)
        room = min(budget, used + self._free_bytes())
        evictions: list[WeightsKey] = []
        for key in _by_use(present):
            if key not in pinned and used + size > room and not present[key].ref_count:
                evictions.append(key)
                used = _used_bytes((other for name, other in present.items() if name not in evictions), new)
        if used + size > budget:
            raise InsufficientMemory
        return evictions

    def _select_host_evictions(self, size: int, spec: CheckpointSpec, evictions: list[WeightsKey]) -> list[WeightsKey]:
        """Select the checkpoints to drop for `size` bytes of the host, and add those on the device to `evictions`:
        first what waits there, then idle ones that are offloaded. Raises as `_select_evictions` does."""
        if not size:
            return []
        staying = {key: each for key, each in self._loaded.items() if key not in evictions}
        waiting = {key: each for key, each in staying.items() if not each.on_device}
        offloaded = {key: each for key, each in staying.items() if each.on_device and each.host_bytes}
        pinned = {key: each for key, each in offloaded.items() if self._is_pinned(key, each, spec)}
        idle = {key: each for key, each in offloaded.items() if not each.ref_count and key not in pinned}
        budget = self._budgets.offload_bytes
        if size + _on_host_bytes(pinned.values()) > budget:
            raise CheckpointError(_no_room(size, spec, budget, pinned.values()))
        dropped: list[WeightsKey] = []
        for key in (*_by_use(waiting), *_by_use(idle)):
            if _on_host_bytes(staying.values()) + size > budget:
                del staying[key]
                (dropped if key in waiting else evictions).append(key)
        if _on_host_bytes(staying.values()) + size > budget:
            raise InsufficientMemory
        return dropped

    def _has_room_on_host(self, loaded: LoadedCheckpoint, promised: int) -> bool:
        """Make room on the host for a checkpoint that leaves the device, beside `promised` bytes, by dropping those
        that have waited there longest; False where there is none."""
        waiting = {key: each for key, each in self._loaded.items() if not each.on_device}
        offloaded = sum(each.host_bytes for each in self._loaded.values() if each.on_device)
        limit = min(self._budgets.host_bytes, self._budgets.offload_bytes - offloaded - promised)
        if loaded.bytes > limit:
            return False
        for key in _by_use(waiting):
            if loaded.bytes + _on_host_bytes(waiting.values()) > limit:
                del self._loaded[key], waiting[key]
        return True

    def _free_bytes(self) -> int:
        """Return what the device has left now: other programs may use more of it than when the budget was made."""
        if self._device.type != "cuda":
            return self._budgets.device_bytes
        return watch_device(self._device, available_bytes, self._device)

    def _is_pinned(self, key: WeightsKey, loaded: LoadedCheckpoint, spec: CheckpointSpec) -> bool:
        """Return whether a checkpoint is not evicted for `spec`: `resident` is set, the catalog names it, `spec` is no
        swap of it."""
        own = loaded.checkpoint.spec
        in_catalog = self._catalog_keys is None or key in self._catalog_keys
        return own.runtime.resident and in_catalog and not replaces(spec, own)

    def _evict(self, key: WeightsKey, promised: int = 0) -> LoadedCheckpoint | None:
        """Stop counting it on the device. A checkpoint that is returned must be offloaded: the host has room for it,
        beside so many bytes that are promised to another."""
        loaded = self._loaded[key]
        runtime = loaded.checkpoint.runtime
        alone = not any(
            loaded.part_sizes.keys() & other.part_sizes.keys() for other in self._loaded.values() if other is not loaded
        )
        exact = runtime.offload == "none" and runtime.quantize in {"none", "fp8"} and loaded.checkpoint.split is None
        if alone and loaded.on_device and exact and self._has_room_on_host(loaded, promised):
            loaded.on_device = False
            return loaded
        self._drop(key)
        return None

    def _drop(self, key: WeightsKey) -> None:
        """Forget a checkpoint. The loader's next work frees its memory, that of other devices included."""
        loaded = self._loaded.pop(key)
        if loaded.checkpoint.split is not None:
            self._loader.submit(loaded.checkpoint.split.close)


def _used_bytes(checkpoints: Iterable[LoadedCheckpoint], new: Sizes) -> int:
    """Return the bytes of these checkpoints beside a new one with such components: those that several share count
    once."""
    listed = list(checkpoints)
    used = sum(each.bytes for each in listed)
    return used - shared_bytes([new, *(each.part_sizes for each in listed)])


def _on_host_bytes(checkpoints: Iterable[LoadedCheckpoint]) -> int:
    """Return the bytes that these checkpoints take of the host's memory."""
    return sum(each.host_bytes if each.on_device else each.bytes for each in checkpoints)


def _misfit(needed: Footprint, spec: CheckpointSpec, alone: Room) -> str:
    """Say what a checkpoint takes that never fits, and what there is of each memory."""
    takes, budget = f"{needed.device_bytes / GIB:.1f} GiB", f"the device's budget is {alone.device_bytes / GIB:.1f} GiB"
    if needed.host_bytes:
        takes += f" of the device and {needed.host_bytes / GIB:.1f} GiB of the host"
        budget += f", and the host's {alone.host_bytes / GIB:.1f} GiB"
    smaller = (
        "Its smallest form is this" if spec.runtime.auto else "runtime.offload or runtime.quantize make it smaller"
    )
    return f"{spec.path} takes {takes}, and {budget}. {smaller}."


def _no_room(size: int, spec: CheckpointSpec, budget: float, resident: Iterable[LoadedCheckpoint]) -> str:
    names = ", ".join(loaded.checkpoint.spec.name for loaded in resident)
    return (
        f"{spec.path} takes {size / GIB:.1f} GiB, for which the budget of {budget / GIB:.1f} GiB has no room beside "
        f"what runtime.resident keeps there: {names}."
    )


def _by_use(checkpoints: Mapping[WeightsKey, LoadedCheckpoint]) -> list[WeightsKey]:
    """Return the longest unused first, and those with `runtime.resident` after all others."""
    return sorted(
        checkpoints,
        key=lambda key: (checkpoints[key].checkpoint.spec.runtime.resident, checkpoints[key].used_at),
    )
