"""The thread that computes. Sequences come in from the event loop; every checkpoint with work takes a step in turn."""

import queue
import threading

import torch

from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.model_runner import batched_token_bytes
from pipelines.chat.scheduler import Batch
from pipelines.chat.sequence import Sequence
from pipelines.chat.sequential import Solo
from pipelines.device.failures import is_out_of_memory
from pipelines.device.memory import free_memory
from pipelines.device.openmp import let_helpers_go
from pipelines.protocol.chat import ChatSpec


class DeviceLoop:
    """Owns every batch. `add` may be called from any thread."""

    def __init__(self, device: torch.device, budget_bytes: int) -> None:
        self._device = device
        self._budget_bytes = budget_bytes
        self._threads = torch.get_num_threads()  # before any checkpoint has asked for fewer
        self._inbox: queue.SimpleQueue[list[Sequence]] = queue.SimpleQueue()
        self._batches: dict[ChatCheckpoint, Batch] = {}
        self._solos: dict[ChatCheckpoint, Solo] = {}
        self._kept: frozenset[ChatSpec] | None = None  # None until the catalog has changed
        threading.Thread(target=self._run, name="chat", daemon=True).start()

    def add(self, sequences: list[Sequence]) -> None:
        """The choices of one request."""
        self._inbox.put(sequences)

    def keep(self, specs: frozenset[ChatSpec]) -> None:
        """Those of other checkpoints go, with the weights, once they are idle."""
        self._kept = specs
        self.tidy()

    def tidy(self) -> None:
        """A chat has ended whose checkpoint the catalog has dropped: its weights may go now."""
        self._inbox.put([])

    @torch.inference_mode()
    def _run(self) -> None:
        untidy = False
        while True:
            if (kept := self._kept) is not None:
                self._let_go(kept)
            if untidy:
                free_memory(self._device)
            if self._idle:
                let_helpers_go()
            untidy = self._receive()
            self._step_all()

    @property
    def _idle(self) -> bool:
        return all(batch.idle for batch in self._batches.values())

    def _receive(self) -> bool:
        """Take what has come; without work, wait for it. True after a call to tidy up: the rest is taken then."""
        while self._idle or not self._inbox.empty():
            if not self._take(self._inbox.get()):
                return True
        return False

    def _take(self, sequences: list[Sequence]) -> bool:
        for sequence in sequences:
            try:
                self._lane(sequence.request.checkpoint).add(sequence)
            except Exception as error:  # such as no memory for the first look at a model
                sequence.request.fail(error)
        return bool(sequences)

    def _lane(self, checkpoint: ChatCheckpoint) -> Batch | Solo:
        """Where its sequences go. Made when the first one comes."""
        if checkpoint not in self._batches and checkpoint not in self._solos:
            token_bytes = None if checkpoint.processor else batched_token_bytes(checkpoint)
            if token_bytes:
                self._batches[checkpoint] = Batch(checkpoint, token_bytes)
                self._share_out()
            else:
                self._solos[checkpoint] = Solo(checkpoint, self._threads)
        return self._batches.get(checkpoint) or self._solos[checkpoint]

    def _let_go(self, kept: frozenset[ChatSpec]) -> None:
        gone = [checkpoint for checkpoint, batch in self._batches.items() if batch.idle and checkpoint.spec not in kept]
        for checkpoint in gone:
            del self._batches[checkpoint]
            self._share_out()
        for checkpoint in [checkpoint for checkpoint in self._solos if checkpoint.spec not in kept]:
            self._solos.pop(checkpoint).end()

    def _share_out(self) -> None:
        """Each batch may keep an equal part of the budget. One that had more keeps it until it is idle."""
        for batch in self._batches.values():
            batch.limit(self._budget_bytes // len(self._batches))

    def _step_all(self) -> None:
        for batch in self._batches.values():
            if not batch.idle:
                self._step(batch)

    def _step(self, batch: Batch) -> None:
        try:
            batch.step(self._threads)
        except Exception as error:
            if is_out_of_memory(error) and batch.halve():
                free_memory(batch.checkpoint.device)
            else:
                batch.fail(error)
