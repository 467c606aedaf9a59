"""The thread that computes. Sequences come in from the event loop; every checkpoint with work takes a step in turn."""

import queue
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from pipelines.chat.loading.checkpoint import CacheShare, ChatCheckpoint
from pipelines.chat.steps.batched import BatchedGenerator
from pipelines.chat.steps.sequence import Sequence
from pipelines.chat.steps.sequential import SequentialGenerator
from pipelines.device.failures import clear_frames, exit_if_lost, is_out_of_memory, watch_device
from pipelines.device.memory import free_memory
from pipelines.device.openmp import release_openmp_threads
from pipelines.protocol.chat import ChatSpec


@dataclass(frozen=True, slots=True)
class _Release:
    """Generators that are to go, as soon as they are idle, and the event that says that they have."""

    checkpoints: frozenset[ChatCheckpoint]
    done: threading.Event = field(default_factory=threading.Event)


class DeviceLoop:
    """Owns every generator. The public methods may be called from any thread."""

    def __init__(self, device: torch.device, cache_share: CacheShare) -> None:
        self._device = device
        self._cache_share = cache_share
        self._threads = torch.get_num_threads()  # before any checkpoint has asked for fewer
        self._inbox: queue.SimpleQueue[list[Sequence] | _Release] = queue.SimpleQueue()
        self._releases: list[_Release] = []
        self._batched: dict[ChatCheckpoint, BatchedGenerator] = {}
        self._sequential: dict[ChatCheckpoint, SequentialGenerator] = {}
        self._retained: frozenset[ChatSpec] | None = None  # None until the catalog has changed
        threading.Thread(target=self._run, name="chat", daemon=True).start()

    def add(self, sequences: list[Sequence]) -> None:
        """Queue the sequences of one request."""
        self._inbox.put(sequences)

    def unload_except(self, specs: frozenset[ChatSpec]) -> None:
        """Evict other checkpoints than these, with their weights, as soon as they are idle."""
        self._retained = specs
        self.evict_idle()

    def evict_idle(self) -> None:
        """Wake the loop to evict idle checkpoints. Call it when a chat has ended whose checkpoint is not retained."""
        self._inbox.put([])

    def release(self, checkpoints: Iterable[ChatCheckpoint]) -> None:
        """Free the generators of these checkpoints, with their KV caches. Blocks until their last steps have ended."""
        release = _Release(frozenset(checkpoints))
        self._inbox.put(release)
        release.done.wait()

    @torch.inference_mode()
    def _run(self) -> None:
        evicting = False
        while True:
            if (retained := self._retained) is not None:
                self._evict_all_but(retained)
            self._release_idle()
            if evicting:
                watch_device(self._device, free_memory, self._device)
            if self._idle:
                release_openmp_threads()
            evicting = self._receive()
            self._step_all()

    def _step_all(self) -> None:  # a call of its own, whose frame holds no generator while the loop waits
        for generator in self._batched.values():
            if not generator.idle:
                self._step(generator)

    def _step(self, generator: BatchedGenerator) -> None:
        try:
            generator.step(self._threads)
        except BaseException as error:  # a panic of a library in Rust is no Exception
            exit_if_lost(error, self._device)
            if is_out_of_memory(error) and generator.make_room():
                clear_frames(error)  # they hold the tensors that did not fit
                watch_device(self._device, free_memory, self._device)
            else:
                generator.fail(error)

    @property
    def _idle(self) -> bool:
        return all(generator.idle for generator in self._batched.values())

    def _receive(self) -> bool:
        """Add the sequences that have come; without work, wait for some. Returns early, with True, where eviction was
        asked for."""
        while self._idle or not self._inbox.empty():
            if not self._add(self._inbox.get()):
                return True
        return False

    def _add(self, sequences: list[Sequence] | _Release) -> bool:
        if isinstance(sequences, _Release):
            self._releases.append(sequences)
            return False
        for sequence in sequences:
            try:
                self._generator(sequence).add(sequence)
            except Exception as error:  # such as no memory for another thread
                exit_if_lost(error, self._device)
                sequence.request.fail(error)
        return bool(sequences)

    def _generator(self, sequence: Sequence) -> BatchedGenerator | SequentialGenerator:
        """Return the generator for a sequence, made when the first one comes. What has more inputs than tokens, as a
        chat with images has, can't share a batch, but other chats of that model can."""
        checkpoint = sequence.request.checkpoint
        if checkpoint.batching.unbatched_reason is None and not sequence.request.inputs:
            if checkpoint not in self._batched:
                self._batched[checkpoint] = BatchedGenerator(checkpoint)
            self._split_cache_budget()
            return self._batched[checkpoint]
        if checkpoint not in self._sequential:
            self._sequential[checkpoint] = SequentialGenerator(checkpoint, self._threads)
        return self._sequential[checkpoint]

    def _split_cache_budget(self) -> None:
        """Split the budget in equal parts. A generator that has more releases it when it is idle."""
        for generator in self._batched.values():
            generator.set_cache_budget(self._cache_share.bytes)

    def _release_idle(self) -> None:
        for release in list(self._releases):
            batched = {each: self._batched[each] for each in release.checkpoints if each in self._batched}
            if all(each.idle for each in batched.values()):
                for checkpoint in batched:
                    del self._batched[checkpoint]
                for checkpoint in release.checkpoints & self._sequential.keys():
                    generator = self._sequential.pop(checkpoint)
                    generator.close()
                    generator.join()
                self._releases.remove(release)
                release.done.set()

    def _evict_all_but(self, retained: frozenset[ChatSpec]) -> None:
        for checkpoint, generator in list(self._batched.items()):
            if generator.idle and checkpoint.spec not in retained:
                del self._batched[checkpoint]
        self._split_cache_budget()
        for checkpoint in [checkpoint for checkpoint in self._sequential if checkpoint.spec not in retained]:
            self._sequential.pop(checkpoint).close()
