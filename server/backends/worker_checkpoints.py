"""The checkpoints of one host's workers: which they are to load, have loaded, could not load, and have lost to a
sleep."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from pipelines.protocol.messages import CheckpointState, JobKind, Spec
from server.backends.failed_loads import FailedLoads
from server.backends.worker_life import Place

FIRST_LOAD_S: Final = 20.0  # assumed for loading a checkpoint until it has been loaded
RESTORE_SHARE: Final = 0.1  # of the time from the disk that weights take from the host's memory


class WorkerDied(Exception):
    """The worker died, or was restarting, while a checkpoint was being prepared."""

    def __init__(self, kind: JobKind) -> None:
        super().__init__(f"the {kind} worker died while the checkpoint was loading")


class WorkerCheckpoints:
    """The checkpoints of a host. `preload` are those that every worker loads, `retained` those that it may have, once
    that is told; `states` is what became of those that were loaded; `loading` are told to the worker, or will be told
    to one that is woken, and have no state yet."""

    def __init__(self, preload: Iterable[Spec]) -> None:
        self.preload = tuple(preload)
        self.retained: tuple[Spec, ...] = ()
        self.states: dict[Spec, CheckpointState] = {}
        self.loading: dict[Spec, None] = {}
        self.failures = FailedLoads()
        self._preparing: dict[Spec, asyncio.Future[CheckpointState]] = {}
        self._cold: dict[Spec, Place] = {}  # served, and to be loaded by the first job that needs it

    @property
    def are_settled(self) -> bool:
        """Return whether nothing is being loaded or tried."""
        tried = not any(state.trials_left for state in self.states.values())
        return tried and not self.loading and not self._preparing

    def retain(self, specs: Sequence[Spec], preload: Sequence[Spec], *, retries: bool = True) -> list[Spec]:
        """Forget all others than `specs`, and return those of `preload` that have to be loaded now: with `retries` also
        those that have failed."""
        self.preload, self.retained = tuple(preload), tuple(specs)
        kept = set(specs)
        self.states = {spec: state for spec, state in self.states.items() if spec in kept}
        self._cold = {spec: place for spec, place in self._cold.items() if spec in kept}
        if retries:
            self.failures.clear()
        wanted = [spec for spec in preload if not self.is_loaded(spec) and spec not in self.loading]
        return [spec for spec in wanted if self.failures.at(spec) is None]

    def first_loads(self, *, wakes: bool) -> tuple[Spec, ...]:
        """Return what a new worker is to load: everything, or what was asked of one that `wakes`."""
        if not wakes:
            self.loading = dict.fromkeys(self.preload)
        return tuple(self.loading)

    def preparing(self, spec: Spec) -> asyncio.Future[CheckpointState]:
        """Return what will become of a checkpoint that is being loaded."""
        return self._preparing.setdefault(spec, asyncio.get_running_loop().create_future())

    def record(self, state: CheckpointState) -> None:
        """Record that a checkpoint is loaded, or that it can't be."""
        self.loading.pop(state.spec, None)
        if state.state == "loaded":
            self._cold.pop(state.spec, None)
            self.failures.record_loaded(state.spec)
        else:
            self.failures.remember(state.spec, waits_for_memory=state.waits_for_memory)
        self.states[state.spec] = state
        if (future := self._preparing.pop(state.spec, None)) and not future.done():
            future.set_result(state)

    def fail(self, spec: Spec, reason: str) -> None:
        """Record that a checkpoint does not load now. What it can do is known from before, if it has been loaded."""
        known = self.states.get(spec)
        failed = CheckpointState(spec, "failed", reason)
        self.states[spec] = replace(known, state="failed", detail=reason) if known is not None else failed
        self.failures.remember(spec)

    def is_mended(self, spec: Spec) -> bool:
        """Return whether a checkpoint, with which a job has just started, is on record as one that does not load."""
        return spec in self.states and not self.is_loaded(spec) and spec not in self.loading

    def is_loaded(self, spec: Spec) -> bool:
        """Return whether a checkpoint has been loaded, whether or not it has left the device since."""
        return spec in self.states and self.states[spec].state == "loaded"

    def slept(self, place: Place) -> None:
        """Record that all have left the device."""
        self._cold.update(dict.fromkeys(self.states, place))

    def cold(self, specs: Iterable[Spec]) -> list[Spec]:
        """Return those that have left the device and are not yet on their way back."""
        return [spec for spec in specs if spec in self._cold and spec not in self.loading]

    def wake_s(self, spec: Spec, start_s: float | None) -> float:
        """Return how long it takes until a checkpoint is back that has left the device; 0 if it has not. `start_s` is
        the time of the worker's start; None if it is there."""
        place, state = self._cold.get(spec), self.states.get(spec)
        if place is None or state is None:
            return 0.0
        load_s = FIRST_LOAD_S if state.load_s is None else state.load_s
        if start_s is not None:
            return start_s + load_s
        return load_s * RESTORE_SHARE if place == "host" else load_s

    def lose(self, kind: JobKind) -> None:
        """Forget what a dead worker had. Whoever waits for a checkpoint gets WorkerDied."""
        for future in self._preparing.values():
            if not future.done():
                future.set_exception(WorkerDied(kind))
        for known in (self.states, self.loading, self._preparing, self._cold):
            known.clear()
